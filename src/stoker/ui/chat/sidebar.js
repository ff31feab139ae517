// The list of conversations: search, import and export.
import { html, useEffect, useMemo, useRef, useState } from '../vendor/preact.js';
import { icon } from '../icons.js';
import { t } from '../locale/index.js';
import { adopt, chats, isEmpty, newChat, open, openId, remove, running, titleOf } from '../state/chats.js';
import { showChat } from '../state/view.js';
import { isLasting } from '../store/db.js';
import { find } from '../store/search.js';
import { save } from '../text/files.js';
import { stop } from './answer.js';

export function Sidebar({ close }) {
  const [query, setQuery] = useState('');
  const [words, setWords] = useState('');
  const found = useFound(query.trim().toLowerCase());
  const show = (id) => { openId.value = id; showChat(); close(); };
  const drop = (chat) => {
    if (!confirm(t('deleteChatAsk', titleOf(chat)))) return;
    stop(chat.id);
    remove(chat.id);
  };
  return html`<div class="scrim" onClick=${close}></div><nav class="sidebar" aria-label=${t('chats')}>
    <button type="button" class="new" onClick=${() => show(newChat())}>${icon('new')} ${t('newChat')}</button>
    <input type="search" id="search" aria-label=${t('searchChats')} placeholder=${t('search')} value=${query} onInput=${({ currentTarget }) => setQuery(currentTarget.value)} />
    <ul>${found.map((chat) => html`<li key=${chat.id}>
      <button type="button" class="quiet title" dir="auto" aria-current=${chat.id === openId.value ? 'true' : undefined} title=${titleOf(chat)}
        onClick=${() => show(chat.id)}>${running.value.has(chat.id) && html`<span class="pulse" role="img" aria-label=${t('isWriting')}></span>`}${titleOf(chat)}</button>
      ${!isEmpty(chat) && html`<button type="button" class="quiet drop" aria-label=${t('deleteChat', titleOf(chat))} title=${t('delete')} onClick=${() => drop(chat)}>${icon('delete')}</button>`}
    </li>`)}</ul>
    ${query && found.length === 0 && html`<p class="empty-part" role="status">${t('noChatFound')}</p>`}
    ${words && html`<p role="status">${words}</p>`}
    <${Files} setWords=${setWords} />
  </nav>`;
}

/** The conversations with these words. Titles are here; messages are looked through beside the page. */
function useFound(words) {
  const [inMessages, setInMessages] = useState(new Set());
  useEffect(() => {
    if (!words) return;
    isLasting().then((lasts) => (lasts ? find(words) : here(words))).then((ids) => { if (ids) setInMessages(new Set(ids)); });
  }, [words]);
  return useMemo(() => chats.value.filter((chat) => !words || titleOf(chat).toLowerCase().includes(words) || inMessages.has(chat.id)), [chats.value, words, inMessages]);
}

const here = (words) => chats.value.filter(({ nodes }) => Object.values(nodes).some(({ content }) => content.toLowerCase().includes(words))).map(({ id }) => id);

const transfer = () => import('../store/transfer.js');

function Files({ setWords }) {
  const input = useRef(null);
  const take = async () => {
    const [file] = input.current.files;
    input.current.value = '';
    try {
      const found = (await transfer()).imported(await file.text());
      adopt(found);
      setWords(t('wereImported', found.length));
    } catch (error) {
      setWords(error.message);
    }
  };
  const kept = () => chats.value.filter((chat) => !isEmpty(chat));
  return html`<div class="files"><button type="button" class="quiet" onClick=${() => input.current.click()}>${t('import')}</button>
    <input ref=${input} type="file" accept=".json,application/json" class="hidden" aria-label=${t('importChats')} tabindex="-1" onChange=${take} />
    <button type="button" class="quiet" onClick=${async () => save('stoker-chats.json', (await transfer()).exported(kept()))}>${t('exportAll')}</button>
    <button type="button" class="quiet" onClick=${async () => save('chat.md', (await transfer()).asMarkdown(open.value), 'text/markdown')}>${t('saveMarkdown')}</button></div>`;
}
