// The list of conversations.
import { html } from '../vendor/preact.js';
import { chats, newChat, openId, remove } from '../state/chats.js';
import { running, stop } from './answer.js';

export function Sidebar({ close }) {
  const show = (id) => { openId.value = id; location.hash = ''; close(); };
  const drop = (chat) => {
    if (!confirm(`Delete "${chat.title}"?`)) return;
    stop(chat.id);
    remove(chat.id);
  };
  return html`<nav class="sidebar" aria-label="Chats">
    <button type="button" class="primary" onClick=${() => show(newChat())}>New chat</button>
    <ul>${chats.value.map((chat) => html`<li key=${chat.id}>
      <button type="button" class="quiet title" dir="auto" aria-current=${chat.id === openId.value ? 'true' : undefined}
        onClick=${() => show(chat.id)}>${running.value.has(chat.id) ? '● ' : ''}${chat.title}</button>
      ${chat.messages.length > 0 && html`<button type="button" class="quiet" aria-label=${`Delete ${chat.title}`} onClick=${() => drop(chat)}>×</button>`}
    </li>`)}</ul>
  </nav>`;
}
