// The conversations, and which of them is open. Every change is written to the store.
import { computed, signal } from '../vendor/preact.js';
import { allChats, deleteChat, putChat } from '../store/db.js';

export const chats = signal([]);
export const openId = signal('');
export const open = computed(() => chats.value.find((chat) => chat.id === openId.value) ?? null);

export async function loadChats() {
  chats.value = (await allChats()).sort((a, b) => b.updated - a.updated);
  openId.value = chats.value[0]?.id ?? newChat();
}

/** An empty conversation, with the settings of the one that was open. It is stored with its first message. */
export function newChat() {
  const { system = '', sampling = {}, model = '' } = open.value ?? {};
  const chat = { id: newId(), title: 'New chat', updated: Date.now(), system, sampling, model, messages: [] };
  chats.value = [chat, ...chats.value.filter((each) => each.messages.length)];
  openId.value = chat.id;
  return chat.id;
}

export const chatOf = (id) => chats.value.find((chat) => chat.id === id);

export function update(id, change, { isStored = true } = {}) {
  chats.value = chats.value.map((chat) => (chat.id === id ? { ...chat, ...change, updated: Date.now() } : chat));
  const chat = chatOf(id);
  if (isStored && chat?.messages.length) putChat(chat).catch(() => {});
}

/** Changes the last message. */
export function amend(id, change, options) {
  const messages = chatOf(id)?.messages;
  if (messages) update(id, { messages: [...messages.slice(0, -1), { ...messages.at(-1), ...change }] }, options);
}

export function remove(id) {
  chats.value = chats.value.filter((chat) => chat.id !== id);
  deleteChat(id).catch(() => {});
  if (openId.value === id) openId.value = chats.value[0]?.id ?? newChat();
}

/** `crypto.randomUUID` is missing on plain HTTP in a LAN. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
