// The conversation as it is read: messages with their Markdown, their reasoning, their numbers and what can be done.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { open } from '../state/chats.js';
import { Markdown, copy } from '../text/markdown.js';
import { regenerate, running, say } from './answer.js';

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
  const last = chat.messages.length - 1;
  return html`<div class="log" role="log" aria-label="Conversation" aria-busy=${isBusy} tabindex="0" ref=${log} onScroll=${onScroll}>
    ${last < 0 && html`<p class="empty">Write a message to begin. Your conversations stay in this browser.</p>`}
    ${chat.messages.map((message, index) => html`<${Message} key=${`${chat.id}.${index}`} id=${chat.id} message=${message}
      index=${index} isLast=${index === last} isBusy=${isBusy && index === last} />`)}
  </div>`;
}

function Message({ id, message, index, isLast, isBusy }) {
  const [isEdited, setEdited] = useState(false);
  return useMemo(() => html`<article class=${`message ${message.role}`} aria-label=${message.role === 'user' ? 'You' : 'Model'}>
    ${message.reasoning && html`<details class="reasoning"><summary>${isBusy && !message.content ? 'Thinking …' : 'Reasoning'}</summary>
      <${Markdown} text=${message.reasoning} /></details>`}
    ${isEdited
      ? html`<${Editor} id=${id} index=${index} text=${message.content} close=${() => setEdited(false)} />`
      : html`<div class="text" dir="auto">${message.role === 'user' ? message.content : html`<${Markdown} text=${message.content} />`}</div>`}
    ${isBusy && !message.content && !message.reasoning && html`<p class="waiting">Waiting for the first token …</p>`}
    ${message.error && html`<p class="error" role="alert">${message.error}</p>`}
    <footer>
      ${message.role === 'assistant' && html`<${Numbers} message=${message} />`}
      ${!isBusy && html`<button type="button" class="quiet" onClick=${() => copy(message.content)}>Copy</button>`}
      ${!isBusy && message.role === 'user' && html`<button type="button" class="quiet" onClick=${() => setEdited(true)}>Edit</button>`}
      ${!isBusy && isLast && html`<button type="button" class="quiet" onClick=${() => regenerate(id)}>Regenerate</button>`}
    </footer>
  </article>`, [message, isLast, isBusy, isEdited, index, id]);
}

function Editor({ id, index, text, close }) {
  const area = useRef(null);
  useEffect(() => { area.current.focus(); }, []);
  const submit = (event) => {
    event.preventDefault();
    close();
    say(id, area.current.value, index);
  };
  return html`<form class="editor" onSubmit=${submit} onKeyDown=${(event) => event.key === 'Escape' && close()}>
    <textarea ref=${area} aria-label="Edited message" rows="3" defaultValue=${text}></textarea>
    <button type="submit">Send again</button><button type="button" class="quiet" onClick=${close}>Cancel</button>
  </form>`;
}

function Numbers({ message }) {
  const { speed = 0, tokens, prompt, cached, firstMs } = message.stats ?? {};
  const parts = [
    message.model,
    speed > 0 && `${speed.toFixed(1)} tok/s`,
    tokens !== undefined && `${tokens} tokens`,
    prompt !== undefined && `prompt ${prompt}${cached ? `, ${cached} cached` : ''}`,
    firstMs && `first token ${(firstMs / 1000).toFixed(2)} s`,
    message.finish === 'length' && 'cut at the token limit',
    message.finish === 'stopped' && 'stopped',
  ];
  return html`<span class="numbers">${parts.filter(Boolean).join(' · ')}</span>`;
}
