// The field in which messages are written. Enter sends, Shift-Enter makes a line, Escape stops the answer.
import { html, useLayoutEffect, useRef, useState } from '../vendor/preact.js';
import { icon } from '../icons.js';
import { t } from '../locale/index.js';
import { models, props, writers } from '../state/server.js';
import { open, running } from '../state/chats.js';
import { path } from '../state/tree.js';
import { say, stop } from './answer.js';
import { Attachments } from './attachments.js';

const MAX_PX = 240;
const COUNTS = [1, 2, 3, 4, 8];
const EACH_MODEL = 'models';
const DRAFT = 'stoker.draft.';

/** @param props.id that of a conversation; each has a composer of its own */
export function Composer({ id }) {
  const area = useRef(null);
  const [files, setFiles] = useState([]);
  const [words, setWords] = useState('');
  const [num, setNum] = useState('1');
  const isBusy = running.value.has(id);
  useLayoutEffect(() => { area.current.value = draft(id); fit(area.current); area.current.focus(); }, []);
  const send = () => {
    const text = area.current.value;
    if ((!text.trim() && files.length === 0) || running.value.has(id)) return;
    area.current.value = '';
    keep(id, '');
    fit(area.current);
    setFiles([]);
    setWords('');
    say(id, text, { attachments: files, ...(num === EACH_MODEL ? { models: loaded().map((model) => model.id) } : { num: Number(num) }) });
  };
  const take = async (given) => {
    const files = [...given]; // the list of an input is emptied
    const { attach } = await import('../text/attach.js');
    const { found, refused } = await attach(files, props.value?.modalities ?? {});
    setFiles((before) => [...before, ...found]);
    setWords(refused);
  };
  const onKeyDown = (event) => {
    if (event.key === 'Escape') stop(id);
    if (event.key === 'ArrowUp' && !area.current.value) { editLast(event); return; }
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const onPaste = (event) => { if (event.clipboardData.files.length) { event.preventDefault(); take(event.clipboardData.files); } };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}
      onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => { event.preventDefault(); take(event.dataTransfer.files); }}>
    ${words && html`<p class="error" role="alert">${words}</p>`}
    <div class="box">
      ${files.length > 0 && html`<${Attachments} list=${files} remove=${(at) => setFiles(files.filter((_, index) => index !== at))} />`}
      <textarea ref=${area} aria-label=${t('message')} placeholder=${t('messageHint')} rows="1" dir="auto" onKeyDown=${onKeyDown} onPaste=${onPaste}
        onInput=${({ currentTarget }) => { fit(currentTarget); keep(id, currentTarget.value); }}></textarea>
      <div class="tools">
        <label class="attach" title=${t('attachFiles')}>${icon('attach')}<span class="hidden">${t('attachFiles')}</span>
          <input type="file" multiple class="hidden" onChange=${({ currentTarget }) => { take(currentTarget.files); currentTarget.value = ''; }} /></label>
        <select aria-label=${t('answers')} title=${t('answersTitle')} value=${num} onChange=${({ currentTarget }) => setNum(currentTarget.value)}>
          ${COUNTS.map((each) => html`<option key=${each} value=${String(each)}>×${each}</option>`)}
          ${loaded().length > 1 && html`<option value=${EACH_MODEL}>${t('eachModel')}</option>`}</select>
        ${isBusy ? html`<button key="stop" type="button" class="primary round" aria-label=${t('stop')} title=${t('stop')} onClick=${() => stop(id)}>${icon('stop')}</button>`
          : html`<button key="send" type="submit" class="primary round" disabled=${models.value.length === 0} aria-label=${t('send')} title=${t('send')}>${icon('send')}</button>`}
      </div>
    </div></form>`;
}

const loaded = () => writers().filter(({ status, parent }) => status?.value === 'loaded' && !parent);

/** The last message of the person, opened for a change. */
function editLast(event) {
  const last = path(open.value).findLast(({ role }) => role === 'user');
  const button = last && document.querySelector(`[data-id="${last.id}"] .act[data-act="edit"]`);
  if (!button) return;
  event.preventDefault();
  button.click();
}

/** A height in the style of an element is no inline style to the policy: it is set by a script. */
function fit(area) {
  area.style.height = 'auto';
  area.style.height = `${Math.min(area.scrollHeight + 2, MAX_PX)}px`;
}

function draft(id) {
  try {
    return sessionStorage.getItem(DRAFT + id) ?? '';
  } catch {
    return '';
  }
}

function keep(id, text) {
  try {
    if (text) sessionStorage.setItem(DRAFT + id, text);
    else sessionStorage.removeItem(DRAFT + id);
  } catch {
    // storage is blocked: a draft lives as long as the page
  }
}
