// Conversations in IndexedDB: one store of chats, one of messages, one of files. Where the browser offers no storage, they
// live as long as the page. Only what has changed is written, so that a long conversation costs no more than a short one.
import { newId } from './ids.js';

const NAME = 'stoker';
const ALL = ['chats', 'messages', 'blobs'];

const opened = new Promise((resolve) => {
  try {
    const request = indexedDB.open(NAME, 2);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) request.result.createObjectStore('chats', { keyPath: 'id' });
      request.result.createObjectStore('messages', { keyPath: ['chat', 'id'] });
      request.result.createObjectStore('blobs', { keyPath: 'id' });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
    request.onblocked = () => resolve(null);
  } catch {
    resolve(null);
  }
});
/** By conversation, its messages as they were written last. */
const written = new Map();
/** Of attachments that are in the store, under which id. */
const blobIds = new WeakMap();

/** Whether conversations outlive the page. */
export const isLasting = async () => (await opened) !== null;

/** Asks the browser once not to drop the conversations when it lacks room. On plain HTTP there is nothing to ask. */
export const keepStorage = () => navigator.storage?.persist?.().catch(() => false);

export async function allChats() {
  const [chats, messages, blobs] = await read((store) => [store.chats.getAll(), store.messages.getAll(), store.blobs.getAll()], [[], [], []]);
  const nodes = grouped(messages);
  forget(blobs, messages);
  return chats.map((chat) => whole(chat, nodes.get(chat.id), blobs));
}

export async function storedChat(id) {
  const range = IDBKeyRange.bound([id], [id, []]);
  const [chat, messages, blobs] = await read((store) => [store.chats.get(id), store.messages.getAll(range), store.blobs.getAll()], []);
  return chat && whole(chat, messages, blobs);
}

export function putChat({ nodes, ...chat }) {
  const before = written.get(chat.id) ?? {};
  written.set(chat.id, nodes);
  return change((store) => {
    store.chats.put(chat);
    for (const [id, node] of Object.entries(nodes)) if (before[id] !== node) store.messages.put({ ...packed(node, store), chat: chat.id });
    for (const id of Object.keys(before)) if (!nodes[id]) store.messages.delete([chat.id, id]);
  });
}

export function deleteChat(id) {
  written.delete(id);
  return change((store) => {
    store.chats.delete(id);
    store.messages.delete(IDBKeyRange.bound([id], [id, []]));
  });
}

/** What a message is stored as: its files lie beside it, and are written once. */
function packed(node, store) {
  if (!node.attachments?.some(({ url }) => url)) return node;
  return { ...node, attachments: node.attachments.map((each) => {
    const { url, ...rest } = each;
    if (!url) return each;
    if (!blobIds.has(each)) {
      blobIds.set(each, newId());
      store.blobs.put({ id: blobIds.get(each), url });
    }
    return { ...rest, blob: blobIds.get(each) };
  }) };
}

/** Several messages may share a file, so files go when no message has them any more. */
function forget(blobs, messages) {
  const used = new Set(messages.flatMap(({ attachments = [] }) => attachments.map(({ blob }) => blob)));
  const unused = blobs.filter(({ id }) => !used.has(id));
  if (unused.length) change((store) => { for (const { id } of unused) store.blobs.delete(id); }).catch(() => {});
}

function whole(chat, messages = [], blobs = []) {
  if (chat.nodes || chat.messages) return chat; // an older page stored it in one piece
  const urls = new Map(blobs.map(({ id, url }) => [id, url]));
  const nodes = Object.fromEntries(messages.map(({ chat: _, ...node }) => [node.id, { ...node, ...(node.attachments && { attachments: node.attachments.map((each) => unpacked(each, urls)) }) }]));
  written.set(chat.id, nodes);
  return { ...chat, nodes };
}

function unpacked({ blob, ...rest }, urls) {
  if (!blob) return rest;
  const attachment = { ...rest, url: urls.get(blob) };
  blobIds.set(attachment, blob);
  return attachment;
}

function grouped(messages) {
  const found = new Map();
  for (const message of messages) found.set(message.chat, [...(found.get(message.chat) ?? []), message]);
  return found;
}

async function read(action, otherwise) {
  const transaction = (await opened)?.transaction(ALL, 'readonly');
  if (!transaction) return otherwise;
  return Promise.all(action(storesOf(transaction)).map((request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  })));
}

async function change(action) {
  const transaction = (await opened)?.transaction(ALL, 'readwrite');
  if (!transaction) return;
  action(storesOf(transaction));
  await new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

const storesOf = (transaction) => Object.fromEntries(ALL.map((name) => [name, transaction.objectStore(name)]));
