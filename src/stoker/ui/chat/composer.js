// The field in which messages are written. Enter sends, Shift-Enter makes a line, Escape stops the answer.
import { html, useLayoutEffect, useRef, useState } from '../vendor/preact.js';
import { models, props } from '../state/server.js';
import { open, running } from '../state/chats.js';
import { path } from '../state/tree.js';
import { attach } from '../text/attach.js';
import { say, stop } from './answer.js';
import { Attachments } from './messages.js';

const MAX_PX = 240;
const COUNTS = [1, 2, 3, 4, 8];
const DRAFT = 'stoker.draft.';

/** @param props.id that of a conversation; each has a composer of its own */
export function Composer({ id }) {
  const area = useRef(null);
  const [files, setFiles] = useState([]);
  const [words, setWords] = useState('');
  const [num, setNum] = useState(1);
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
    say(id, text, { attachments: files, num });
  };
  const take = async (given) => {
    const { found, refused } = await attach(given, props.value?.modalities?.vision === true);
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
    ${files.length > 0 && html`<${Attachments} list=${files} remove=${(at) => setFiles(files.filter((_, index) => index !== at))} />`}
    ${words && html`<p class="error" role="alert">${words}</p>`}
    <textarea ref=${area} aria-label="Message" placeholder="Message" rows="1" dir="auto" onKeyDown=${onKeyDown} onPaste=${onPaste}
      onInput=${({ currentTarget }) => { fit(currentTarget); keep(id, currentTarget.value); }}></textarea>
    <label class="attach" title="Attach files"><span aria-hidden="true">+</span><span class="hidden">Attach files</span>
      <input type="file" multiple class="hidden" onChange=${({ currentTarget }) => { take(currentTarget.files); currentTarget.value = ''; }} /></label>
    <select aria-label="Answers" title="Answers to one message" value=${num} onChange=${({ currentTarget }) => setNum(Number(currentTarget.value))}>
      ${COUNTS.map((count) => html`<option key=${count} value=${count}>×${count}</option>`)}</select>
    ${isBusy
      ? html`<button key="stop" type="button" onClick=${() => stop(id)}>Stop</button>`
      : html`<button key="send" type="submit" class="primary" disabled=${models.value.length === 0}>Send</button>`}
  </form>`;
}

/** The arrow upward in an empty field edits the last message of the person. */
function editLast(event) {
  const last = path(open.value).findLast(({ role }) => role === 'user');
  const button = last && [...(document.querySelector(`[data-id="${last.id}"]`)?.querySelectorAll('footer button') ?? [])].find((each) => each.textContent === 'Edit');
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
