// The field in which messages are written. Enter sends, Shift-Enter makes a line, Escape stops the answer.
import { html, useEffect, useRef } from '../vendor/preact.js';
import { openId } from '../state/chats.js';
import { running, say, stop } from './answer.js';

const MAX_PX = 240;

export function Composer() {
  const area = useRef(null);
  const id = openId.value;
  const isBusy = running.value.has(id);
  useEffect(() => { area.current.focus(); }, [id]);
  const send = () => {
    const text = area.current.value;
    if (!text.trim() || running.value.has(id)) return;
    area.current.value = '';
    fit(area.current);
    say(id, text);
  };
  const onKeyDown = (event) => {
    if (event.key === 'Escape') stop(id);
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    <textarea ref=${area} aria-label="Message" placeholder="Message" rows="1" dir="auto" onKeyDown=${onKeyDown}
      onInput=${(event) => fit(event.currentTarget)}></textarea>
    ${isBusy
      ? html`<button key="stop" type="button" onClick=${() => stop(id)}>Stop</button>`
      : html`<button key="send" type="submit" class="primary">Send</button>`}
  </form>`;
}

function fit(area) {
  area.style.height = 'auto';
  area.style.height = `${Math.min(area.scrollHeight + 2, MAX_PX)}px`;
}
