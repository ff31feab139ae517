// The conversations, and which of them is open. Every change is written to the store.
import { computed, signal } from '../vendor/preact.js';
import { allChats, deleteChat, keepStorage, putChat, storedChat } from '../store/db.js';
import { newId } from '../store/ids.js';
import { t } from '../locale/index.js';
import { compared, push, pushGone } from '../store/remote.js';
import { path, sound, treeOf } from './tree.js';

/** @type {Sig<Chat[]>} */
export const chats = signal([]);
export const openId = signal('');
/** The one that is open; there is always one after the start.
 * @type {ReadSig<Chat>} */
export const open = computed(() => /** @type {Chat} */ (chats.value.find((chat) => chat.id === openId.value)));
/** By conversation, what stops its answer and what is being written. */
export const running = signal(/** @type {Map<string, {controller: AbortController, writings: any[]}>} */ (new Map()));
let isKept = false;
const news = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('stoker.chats');

export async function loadChats() {
  chats.value = newestFirst((await allChats()).map(asTree));
  openId.value = chats.value[0]?.id ?? newChat();
  if (news) news.onmessage = ({ data }) => takeNews(data);
}

/** Takes over what the server has newer, if it keeps conversations. What is being written stays this tab's own. */
export async function syncChats() {
  const { newer, gone } = await compared(chats.value.filter((chat) => !isEmpty(chat)), newest).catch(() => ({ newer: [], gone: [] }));
  const taken = newer.map(asTree).filter(({ id }) => !running.value.has(id));
  if (!taken.length && !gone.length) return;
  const ids = new Set([...gone, ...taken.map(({ id }) => id)]);
  chats.value = newestFirst([...taken, ...chats.value.filter(({ id }) => !ids.has(id))]);
  for (const chat of taken) putChat(chat).catch(() => {});
  for (const id of gone) deleteChat(id).catch(() => {});
  if (!open.value) openId.value = chats.value[0]?.id ?? newChat();
  else if (isEmpty(open.value) && taken.length && chats.value.length === taken.length + 1) openId.value = taken[0].id;
}

const newest = (id) => ({ chat: chatOf(id), isBusy: running.value.has(id) });

/** Another tab has changed a conversation. What is open here, or written here, is this tab's own. */
async function takeNews({ id, isGone }) {
  const stored = isGone ? undefined : await storedChat(id);
  if (id === openId.value || running.value.has(id) || (!isGone && !stored)) return;
  const others = chats.value.filter((chat) => chat.id !== id);
  chats.value = isGone ? others : newestFirst([asTree(stored), ...others]);
}

const newestFirst = (list) => list.sort((a, b) => b.updated - a.updated);

/** Conversations that an older page stored are lists. */
function asTree(chat) {
  return sound(chat.nodes ? chat : { ...chat, messages: undefined, ...treeOf(chat.messages ?? [], newId) });
}

/** What a conversation is called; one without messages has no name yet. */
export const titleOf = ({ title }) => title || t('newChat');

export const isEmpty = (chat) => Object.keys(chat.nodes).length === 0;

/** An empty conversation, with the settings of the one that was open. It is stored with its first message. */
export function newChat() {
  const { system = '', sampling = {}, model = '', tools = '', thinking = '', adapters = {} } = open.value ?? {};
  const chat = { id: newId(), title: '', updated: Date.now(), system, sampling, model, tools, thinking, adapters, nodes: {}, leaf: '' };
  chats.value = [chat, ...chats.value.filter((each) => !isEmpty(each))];
  openId.value = chat.id;
  return chat.id;
}

/** Conversations from a file, or a copy: they are added, and the first of them is opened. */
export function adopt(found) {
  const added = found.map((chat) => ({ ...chat, id: newId() }));
  chats.value = [...added, ...chats.value];
  for (const chat of added) store(chat);
  if (added.length) openId.value = added[0].id;
}

/** A new conversation that begins like this one up to its leaf. */
export function fork(chat) {
  adopt([{ ...chat, title: t('copyOf', titleOf(chat)), updated: Date.now(), ...treeOf(path(chat), newId) }]);
}

/** @returns {Chat} with an id that is known */
export const chatOf = (id) => /** @type {Chat} */ (chats.value.find((chat) => chat.id === id));

export function update(id, change, { isStored = true } = {}) {
  chats.value = chats.value.map((chat) => (chat.id === id ? { ...chat, ...change, updated: Date.now() } : chat));
  const chat = chatOf(id);
  if (isStored && chat && !isEmpty(chat)) store(chat);
}

/** Changes one message. */
export function amend(id, nodeId, change, options) {
  const chat = chatOf(id);
  const node = chat?.nodes[nodeId];
  if (node) update(id, { nodes: { ...chat.nodes, [nodeId]: { ...node, ...change } } }, options);
}

export function remove(id) {
  chats.value = chats.value.filter((chat) => chat.id !== id);
  pushGone(id);
  deleteChat(id).then(() => news?.postMessage({ id, isGone: true })).catch(() => {});
  if (openId.value === id) openId.value = chats.value[0]?.id ?? newChat();
}

function store(chat) {
  if (!isKept) keepStorage();
  isKept = true;
  push(chat.id, newest);
  putChat(chat).then(() => news?.postMessage({ id: chat.id })).catch(() => {});
}
