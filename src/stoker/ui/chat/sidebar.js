// The list of conversations: search, import and export.
import { html, useMemo, useRef, useState } from '../vendor/preact.js';
import { adopt, chats, isEmpty, newChat, open, openId, remove, running } from '../state/chats.js';
import { asMarkdown, exported, imported } from '../store/transfer.js';
import { save } from '../text/files.js';
import { stop } from './answer.js';

export function Sidebar({ close }) {
  const [query, setQuery] = useState('');
  const [words, setWords] = useState('');
  const show = (id) => { openId.value = id; location.hash = ''; close(); };
  const found = useMemo(() => chats.value.filter((chat) => matches(chat, query.trim().toLowerCase())), [chats.value, query]);
  const drop = (chat) => {
    if (!confirm(`Delete "${chat.title}"?`)) return;
    stop(chat.id);
    remove(chat.id);
  };
  return html`<nav class="sidebar" aria-label="Chats">
    <button type="button" class="primary" onClick=${() => show(newChat())}>New chat</button>
    <input type="search" id="search" aria-label="Search chats" placeholder="Search" value=${query} onInput=${({ currentTarget }) => setQuery(currentTarget.value)} />
    <ul>${found.map((chat) => html`<li key=${chat.id}>
      <button type="button" class="quiet title" dir="auto" aria-current=${chat.id === openId.value ? 'true' : undefined}
        onClick=${() => show(chat.id)}>${running.value.has(chat.id) ? '● ' : ''}${chat.title}</button>
      ${!isEmpty(chat) && html`<button type="button" class="quiet" aria-label=${`Delete ${chat.title}`} onClick=${() => drop(chat)}>×</button>`}
    </li>`)}</ul>
    ${query && found.length === 0 && html`<p class="empty-part" role="status">No chat has these words.</p>`}
    ${words && html`<p role="status">${words}</p>`}
    <${Files} setWords=${setWords} />
  </nav>`;
}

const matches = (chat, words) => !words || chat.title.toLowerCase().includes(words) || Object.values(chat.nodes).some(({ content }) => content.toLowerCase().includes(words));

function Files({ setWords }) {
  const input = useRef(null);
  const take = async () => {
    const [file] = input.current.files;
    input.current.value = '';
    try {
      const found = imported(await file.text());
      adopt(found);
      setWords(`${found.length} ${found.length === 1 ? 'chat was' : 'chats were'} imported.`);
    } catch (error) {
      setWords(error.message);
    }
  };
  const kept = () => chats.value.filter((chat) => !isEmpty(chat));
  return html`<div class="files"><button type="button" class="quiet" onClick=${() => input.current.click()}>Import</button>
    <input ref=${input} type="file" accept=".json,application/json" class="hidden" aria-label="Import chats" tabindex="-1" onChange=${take} />
    <button type="button" class="quiet" onClick=${() => save('stoker-chats.json', exported(kept()))}>Export all</button>
    <button type="button" class="quiet" onClick=${() => save('chat.md', asMarkdown(open.value), 'text/markdown')}>Save as Markdown</button></div>`;
}
