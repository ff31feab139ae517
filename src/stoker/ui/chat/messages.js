// The conversation as it is read: messages with their siblings, reasoning, tool calls and numbers, and what can be done.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { open, running, update } from '../state/chats.js';
import { path, siblings } from '../state/tree.js';
import { Markdown } from '../text/markdown.js';
import { splitThoughts } from '../text/thoughts.js';
import { Actions, Editor, Siblings } from './actions.js';
import { Announcer } from './announcer.js';
import { Attachments } from './attachments.js';
import { Empty } from './empty.js';
import { Numbers, Progress } from './numbers.js';
import { ToolCalls } from './tool_calls.js';

const NEAR_PX = 80;
const MANY = 200;
const WINDOW = 100;

export function Conversation() {
  const chat = open.value;
  const log = useRef(null);
  const isBusy = running.value.has(chat.id);
  const follows = useRef(true);
  const [num, setNum] = useState(WINDOW);
  useEffect(() => { follows.current = true; setNum(WINDOW); }, [chat.id]);
  useLayoutEffect(() => {
    if (follows.current) log.current.scrollTop = log.current.scrollHeight;
  });
  const onScroll = ({ currentTarget: at }) => {
    follows.current = at.scrollHeight - at.scrollTop - at.clientHeight < NEAR_PX;
  };
  const all = path(chat);
  const shown = all.length > MANY ? all.slice(-num) : all;
  const places = placesOf(chat);
  const last = all.at(-1);
  return html`<div class="log" role="log" aria-live="off" aria-label=${t('conversation')} aria-busy=${isBusy} tabindex="0" ref=${log} onScroll=${onScroll}>
    ${!last && html`<${Empty} />`}
    ${shown.length < all.length && html`<${Earlier} numHidden=${all.length - shown.length} log=${log} more=${() => { follows.current = false; setNum(num + WINDOW); }} />`}
    ${shown.map((node) => (node.fan && node.id === last.id && siblings(chat, node).filter(({ fan }) => fan === node.fan).length > 1
      ? html`<${Fan} key=${node.fan} chat=${chat} fan=${node.fan} parent=${node.parent} isBusy=${isBusy} />`
      : html`<${Message} key=${node.id} id=${chat.id} node=${node} place=${places.get(node.id)} isLast=${node.id === last.id} isBusy=${isBusy && node.id === last.id} />`))}
    <${Announcer} key=${chat.id} node=${last} isBusy=${isBusy} />
  </div>`;
}

/** Of a long conversation only the end is drawn; what is above comes when it is asked for, and what is read stays in its place. */
function Earlier({ numHidden, log, more }) {
  const show = () => {
    const { scrollHeight, scrollTop } = log.current;
    more();
    requestAnimationFrame(() => { log.current.scrollTop = scrollTop + log.current.scrollHeight - scrollHeight; });
  };
  return html`<p class="earlier"><button type="button" onClick=${show}>${t('showEarlier', Math.min(WINDOW, numHidden))}</button> <small>${t('numEarlier', numHidden)}</small></p>`;
}

/** By message, which of its siblings it is, as `2/3`; nothing for an only child. */
function placesOf(chat) {
  const byParent = new Map();
  for (const node of Object.values(chat.nodes)) {
    if (byParent.has(node.parent)) byParent.get(node.parent).push(node.id);
    else byParent.set(node.parent, [node.id]);
  }
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
  const { prompt, cached } = nodes[0].stats ?? {};
  const isOnePrompt = prompt !== undefined && nodes.every(({ model }) => model === nodes[0].model);
  return html`<div class="fan-part">
    ${isOnePrompt && html`<p class="fan-note">${t('promptOnce', prompt, cached, nodes.length)}</p>`}
    <div class="fan" role="group" aria-label=${t('numAnswers', nodes.length)}>${nodes.map((node, at) => html`<div key=${node.id}>
      <${Message} id=${chat.id} node=${node} isBusy=${isBusy && !node.finish && !node.error} />
      ${!isBusy && html`<button type="button" class="use" onClick=${() => use(node)}>${t('useAnswer', at + 1)}</button>`}</div>`)}</div></div>`;
}

const NAMES = { user: 'you', assistant: 'model', tool: 'toolResult' };

function Message({ id, node, place, isLast, isBusy }) {
  const [edits, setEdits] = useState(false);
  return useMemo(() => {
    const { thought, content } = splitThoughts(node);
    return html`<article class=${`message ${node.role}${isLast ? ' last' : ''}`} aria-label=${NAMES[node.role] ? t(NAMES[node.role]) : node.role} data-id=${node.id}>
    ${thought && html`<details class="reasoning"><summary>${isBusy && !content ? t('thinking') : t('reasoning', node.thought_ms)}</summary>
      <${Markdown} text=${thought} /></details>`}
    ${node.attachments?.length > 0 && html`<${Attachments} list=${node.attachments} />`}
    ${edits ? html`<${Editor} id=${id} node=${node} close=${() => setEdits(false)} />` : html`<${Text} node=${node} content=${content} />`}
    ${node.tool_calls?.length > 0 && html`<${ToolCalls} id=${id} node=${node} isOpen=${isLast && !isBusy} />`}
    ${isBusy && !content && !thought && html`<${Progress} progress=${node.progress} />`}
    ${node.error && html`<p class="error" role="alert">${node.error}</p>`}
    ${!edits && html`<footer>
      ${node.role === 'assistant' && html`<${Numbers} message=${node} />`}
      <div class="acts">${place && html`<${Siblings} id=${id} node=${node} place=${place} />`}
      ${!isBusy && html`<${Actions} id=${id} node=${node} isLast=${isLast} edit=${() => setEdits(true)} />`}</div>
    </footer>`}
  </article>`;
  }, [node, place, isLast, isBusy, edits, id]);
}

function Text({ node, content }) {
  if (node.role === 'assistant') return html`<div class="text" dir="auto"><${Markdown} text=${content} /></div>`;
  return node.role === 'tool' ? html`<div class="call result"><h3>${t('resultOf', node.name ?? '')}</h3><pre class="text" dir="auto" tabindex="0">${content}</pre></div>` : html`<div class="text" dir="auto">${content}</div>`;
}
