// The keys of the page, in a dialog.
import { html, useEffect, useRef } from '../vendor/preact.js';

const KEYS = [
  ['Enter', 'sends the message'], ['Shift-Enter', 'makes a new line'], ['Escape', 'stops the answer'], ['↑', 'in an empty field edits the last message'],
  ['Ctrl-K', 'searches the chats'], ['Ctrl-Shift-O', 'begins a chat'], ['Ctrl-B', 'shows or hides the list of chats'],
  ['Ctrl-.', 'changes between the chat and the engine view'], ['Alt-← Alt-→', 'show other versions of a message'], ['?', 'shows this list'],
];

export function Keys({ close }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return html`<dialog ref=${dialog} aria-labelledby="keys-title" onClose=${close}><h2 id="keys-title">Keys</h2>
    <dl class="keys">${KEYS.map(([name, words]) => html`<div key=${name}><dt>${name}</dt><dd>${words}</dd></div>`)}</dl>
    <div class="actions"><button type="button" onClick=${close}>Close</button></div></dialog>`;
}
