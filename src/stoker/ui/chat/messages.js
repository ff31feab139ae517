// The conversation as it is read: messages with their siblings, reasoning, tool calls and numbers, and what can be done.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { amend, fork, open, running, update } from '../state/chats.js';
import { leafBelow, path, siblings } from '../state/tree.js';
import { copy } from '../text/clipboard.js';
import { Markdown } from '../text/markdown.js';
import { inspected } from '../inspect/state.js';
import { drop, goOn, regenerate, say } from './answer.js';
import { Numbers, Progress } from './numbers.js';
import { ToolCalls } from './tool_calls.js';

const NEAR_PX = 80;

export function Conversation() {
  const chat = open.value;
  const log = useRef(null);
  const isBusy = running.value.has(chat.id);
  const follows = useRef(true);
  useEffect(() => { follows.current = true; }, [chat.id]);
  useLayoutEffect(() => {
    if (follows.current) log.current.scrollTop = log.current.scrollHeight;
  });
  const onScroll = ({ currentTarget: at }) => {
    follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < NEAR_PX;
  };
  const shown = path(chat);
  const places = placesOf(chat);
  const last = shown.at(-1);
  return html`<div class="log" role="log" aria-label="Conversation" aria-busy=${isBusy} tabindex="0" ref=${log} onScroll=${onScroll}>
    ${!last && html`<p class="empty">Write a message to begin. Your conversations stay in this browser.</p>`}
    ${shown.map((node) => (node.fan && node.id === last.id && siblings(chat, node).filter(({ fan }) => fan === node.fan).length > 1
      ? html`<${Fan} key=${node.fan} chat=${chat} fan=${node.fan} parent=${node.parent} isBusy=${isBusy} />`
      : html`<${Message} key=${node.id} id=${chat.id} node=${node} place=${places.get(node.id)} isLast=${node.id === last.id} isBusy=${isBusy && node.id === last.id} />`))}
  </div>`;
}

/** By message, which of its siblings it is, as `2/3`; nothing for an only child. */
function placesOf(chat) {
  const byParent = new Map();
  for (const node of Object.values(chat.nodes)) byParent.set(node.parent, [...(byParent.get(node.parent) ?? []), node.id]);
  const places = new Map();
  for (const ids of byParent.values()) if (ids.length > 1) ids.forEach((id, at) => places.set(id, `${at + 1}/${ids.length}`));
  return places;
}

/** Several answers to one message, side by side; the one that is used stays, the others are its siblings. */
function Fan({ chat, fan, parent, isBusy }) {
  const nodes = Object.values(chat.nodes).filter((node) => node.parent === parent && node.fan === fan);
  const use = (node) => {
    const changed = Object.fromEntries(nodes.map((each) => [each.id, { ...each, fan: undefined }]));
    update(chat.id, { nodes: { ...chat.nodes, ...changed }, leaf: node.id });
  };
  return html`<div class="fan" role="group" aria-label=${`${nodes.length} answers`}>${nodes.map((node, at) => html`<div key=${node.id}>
    <${Message} id=${chat.id} node=${node} isBusy=${isBusy && !node.finish} />
    ${!isBusy && html`<button type="button" onClick=${() => use(node)}>Use answer ${at + 1}</button>`}</div>`)}</div>`;
}

const NAMES = { user: 'You', assistant: 'Model', tool: 'Tool result' };

function Message({ id, node, place, isLast, isBusy }) {
  const [edits, setEdits] = useState(false);
  return useMemo(() => html`<article class=${`message ${node.role}`} aria-label=${NAMES[node.role] ?? node.role} data-id=${node.id}>
    ${node.reasoning && html`<details class="reasoning"><summary>${isBusy && !node.content ? 'Thinking …' : 'Reasoning'}</summary>
      <${Markdown} text=${node.reasoning} /></details>`}
    ${node.attachments?.length > 0 && html`<${Attachments} list=${node.attachments} />`}
    ${edits ? html`<${Editor} id=${id} node=${node} close=${() => setEdits(false)} />` : html`<${Text} node=${node} />`}
    ${node.tool_calls?.length > 0 && html`<${ToolCalls} id=${id} node=${node} isOpen=${isLast && !isBusy} />`}
    ${isBusy && !node.content && !node.reasoning && html`<${Progress} progress=${node.progress} />`}
    ${node.error && html`<p class="error" role="alert">${node.error}</p>`}
    <footer>
      ${node.role === 'assistant' && html`<${Numbers} message=${node} />`}
      ${place && html`<${Siblings} id=${id} node=${node} place=${place} />`}
      ${!isBusy && html`<${Actions} id=${id} node=${node} isLast=${isLast} edit=${() => setEdits(true)} />`}
    </footer>
  </article>`, [node, place, isLast, isBusy, edits, id]);
}

function Text({ node }) {
  if (node.role === 'assistant') return html`<div class="text" dir="auto"><${Markdown} text=${node.content} /></div>`;
  return node.role === 'tool' ? html`<pre class="text" dir="auto">${node.name}: ${node.content}</pre>` : html`<div class="text" dir="auto">${node.content}</div>`;
}

function Actions({ id, node, isLast, edit }) {
  const isAnswer = node.role === 'assistant';
  const isCut = node.finish === 'length' || node.finish === 'stopped' || node.error;
  return html`
    <button type="button" class="quiet" onClick=${() => copy(node.content)}>Copy</button>
    ${node.role !== 'tool' && html`<button type="button" class="quiet" onClick=${edit}>Edit</button>`}
    ${isAnswer && isLast && isCut && node.content && html`<button type="button" class="quiet" onClick=${() => goOn(id, node)}>Continue</button>`}
    ${isAnswer && isLast && html`<button type="button" class="quiet" onClick=${() => regenerate(id, node)}>Regenerate</button>`}
    ${isAnswer && node.content && html`<button type="button" class="quiet" onClick=${() => { inspected.value = { chatId: id, nodeId: node.id }; }}>Tokens</button>`}
    <button type="button" class="quiet" onClick=${() => fork({ ...open.value, leaf: node.id })}>Fork</button>
    <button type="button" class="quiet" aria-label="Delete this message and all below it" onClick=${() => { if (confirm('Delete this message and all below it?')) drop(id, node); }}>Delete</button>`;
}

function Siblings({ id, node, place }) {
  const go = (step) => {
    const chat = open.value;
    const all = siblings(chat, node);
    const next = all[all.findIndex((each) => each.id === node.id) + step];
    if (next) update(id, { leaf: leafBelow(chat, next.id) });
  };
  const [at, num] = place.split('/').map(Number);
  return html`<span class="siblings" role="group" aria-label="Versions"><button type="button" class="quiet" aria-label="Previous version" disabled=${at === 1} onClick=${() => go(-1)}>‹</button>
    <span>${place}</span><button type="button" class="quiet" aria-label="Next version" disabled=${at === num} onClick=${() => go(1)}>›</button></span>`;
}

export function Attachments({ list, remove }) {
  return html`<ul class="attachments">${list.map((each, at) => html`<li key=${at}>${each.url ? html`<img src=${each.url} alt=${each.name} />` : html`<span>${each.name} (${each.text.length.toLocaleString()} characters)</span>`}
    ${remove && html`<button type="button" class="quiet" aria-label=${`Remove ${each.name}`} onClick=${() => remove(at)}>×</button>`}</li>`)}</ul>`;
}

/** A person's message that is edited is sent again beside the old one; a model's is changed where it is. */
function Editor({ id, node, close }) {
  const area = useRef(null);
  useEffect(() => { area.current.focus(); }, []);
  const isUser = node.role === 'user';
  const submit = (event) => {
    event.preventDefault();
    close();
    if (isUser) say(id, area.current.value, { parent: node.parent, attachments: node.attachments });
    else amend(id, node.id, { content: area.current.value });
  };
  return html`<form class="editor" onSubmit=${submit} onKeyDown=${(event) => event.key === 'Escape' && close()}>
    <textarea ref=${area} aria-label="Edited message" rows=${Math.min(16, 2 + node.content.split('\n').length)} defaultValue=${node.content}></textarea>
    <button type="submit">${isUser ? 'Send again' : 'Save'}</button><button type="button" class="quiet" onClick=${close}>Cancel</button>
  </form>`;
}
