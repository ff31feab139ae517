// The conversations, and which of them is open. Every change is written to the store.
import { computed, signal } from '../vendor/preact.js';
import { allChats, deleteChat, putChat, storedChat } from '../store/db.js';
import { path, sound, treeOf } from './tree.js';

export const chats = signal([]);
export const openId = signal('');
export const open = computed(() => chats.value.find((chat) => chat.id === openId.value) ?? null);
/** By conversation, what stops its answer and what is being written. */
export const running = signal(new Map());
const news = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('stoker.chats');

export async function loadChats() {
  chats.value = newestFirst((await allChats()).map(asTree));
  openId.value = chats.value[0]?.id ?? newChat();
  if (news) news.onmessage = ({ data }) => takeNews(data);
}

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

export const isEmpty = (chat) => Object.keys(chat.nodes).length === 0;

/** An empty conversation, with the settings of the one that was open. It is stored with its first message. */
export function newChat() {
  const { system = '', sampling = {}, model = '', tools = '' } = open.value ?? {};
  const chat = { id: newId(), title: 'New chat', updated: Date.now(), system, sampling, model, tools, nodes: {}, leaf: '' };
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
  adopt([{ ...chat, title: `${chat.title} (copy)`, updated: Date.now(), ...treeOf(path(chat), newId) }]);
}

export const chatOf = (id) => chats.value.find((chat) => chat.id === id);

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
  deleteChat(id).then(() => news?.postMessage({ id, isGone: true })).catch(() => {});
  if (openId.value === id) openId.value = chats.value[0]?.id ?? newChat();
}

function store(chat) {
  putChat(chat).then(() => news?.postMessage({ id: chat.id })).catch(() => {});
}

/** `crypto.randomUUID` is missing on plain HTTP in a LAN. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
