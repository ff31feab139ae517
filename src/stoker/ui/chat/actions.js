// What can be done with a message: copied, edited, written again, looked at token by token, taken to a new conversation.
import { html, useEffect, useRef } from '../vendor/preact.js';
import { icon } from '../icons.js';
import { inspected } from '../inspect/state.js';
import { t } from '../locale/index.js';
import { amend, fork, open, update } from '../state/chats.js';
import { leafBelow, siblings } from '../state/tree.js';
import { copy } from '../text/clipboard.js';
import { drop, goOn, regenerate, say } from './answer.js';

/** An answer that ended before its time, or that a person has changed, can be written on. */
const CAN_GO_ON = new Set(['length', 'stopped', 'edited']);

export function Actions({ id, node, isLast, edit }) {
  const isAnswer = node.role === 'assistant';
  const canGoOn = isAnswer && isLast && node.content && (CAN_GO_ON.has(node.finish) || node.error);
  const dropAsked = () => { if (confirm(t('deleteMessage'))) drop(id, node); };
  return html`
    ${canGoOn && html`<${Act} name="more" words=${t('continue')} run=${() => goOn(id, node)} />`}
    <${Act} name="copy" words=${t('copy')} run=${() => copy(node.content)} />
    ${node.role !== 'tool' && html`<${Act} name="edit" words=${t('edit')} run=${edit} />`}
    ${isAnswer && isLast && html`<${Act} name="regenerate" words=${t('regenerate')} run=${() => regenerate(id, node)} />`}
    ${isAnswer && node.content && html`<${Act} name="tokens" words=${t('tokens')} run=${() => { inspected.value = { chatId: id, nodeId: node.id }; }} />`}
    <${Act} name="fork" words=${t('fork')} title=${t('forkTitle')} run=${() => fork({ ...open.value, leaf: node.id })} />
    <${Act} name="delete" words=${t('delete')} label=${t('deleteLabel')} run=${dropAsked} />`;
}

function Act({ name, words, label, title, run }) {
  return html`<button type="button" class="quiet act" data-act=${name} aria-label=${label ?? words} title=${title ?? words} onClick=${run}>${icon(name)}<span>${words}</span></button>`;
}

export function Siblings({ id, node, place }) {
  const go = (step) => {
    const chat = open.value;
    const all = siblings(chat, node);
    const next = all[all.findIndex((each) => each.id === node.id) + step];
    if (next) update(id, { leaf: leafBelow(chat, next.id) });
  };
  const [at, num] = place.split('/').map(Number);
  return html`<span class="siblings" role="group" aria-label=${t('versions')}><button type="button" class="quiet" data-step="-1" aria-label=${t('previousVersion')} disabled=${at === 1} onClick=${() => go(-1)}>‹</button>
    <span>${place}</span><button type="button" class="quiet" data-step="1" aria-label=${t('nextVersion')} disabled=${at === num} onClick=${() => go(1)}>›</button></span>`;
}

/** A person's message that is edited is sent again beside the old one; a model's is changed where it is. */
export function Editor({ id, node, close }) {
  const area = useRef(null);
  useEffect(() => { area.current.focus(); }, []);
  const isUser = node.role === 'user';
  const submit = (event) => {
    event.preventDefault();
    close();
    if (isUser) say(id, area.current.value, { parent: node.parent, attachments: node.attachments });
    else amend(id, node.id, { content: area.current.value, finish: 'edited', trace: undefined });
  };
  return html`<form class="editor" onSubmit=${submit} onKeyDown=${(event) => event.key === 'Escape' && close()}>
    <textarea ref=${area} aria-label=${t('editedMessage')} dir="auto" rows=${Math.min(16, 2 + node.content.split('\n').length)} defaultValue=${node.content}></textarea>
    <div class="actions"><button type="button" class="quiet" onClick=${close}>${t('cancel')}</button><button type="submit" class="primary">${isUser ? t('sendAgain') : t('save')}</button></div>
  </form>`;
}
