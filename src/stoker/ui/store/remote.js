// Conversations on the server, where it keeps them (`--ui-store`): the newest version of each counts, here and there.
import { signal } from '../vendor/preact.js';
import { send } from '../wire/api.js';

const PAUSE_MS = 1000;
const ROOT = 'ui-store/chats';

/** The server keeps the conversations of this key. */
export const isRemote = signal(false);
/** By conversation, the timer that sends it. */
const waiting = new Map();

/** Compares with the server. Conversations that are newer here are sent.
 * @param {any[]} local @param {(id: string) => any} newest the present version of a conversation, with `isBusy` while it is written
 * @returns {Promise<{newer: any[], gone: string[]}>} what is newer there, and what was deleted there */
export async function compared(local, newest) {
  const reply = await send(ROOT);
  const { kept = false, chats = [] } = reply.ok ? await reply.json() : {};
  isRemote.value = kept;
  if (!kept) return { newer: [], gone: [] };
  const here = new Map(local.map((chat) => [chat.id, chat]));
  const there = newestOf(chats);
  const newer = [...there.values()].filter(({ id, updated, gone }) => !gone && updated > (here.get(id)?.updated ?? 0));
  const gone = [...there.values()].filter(({ id, updated, gone: isGone }) => isGone && here.has(id) && updated >= here.get(id).updated);
  const known = new Set(gone.map(({ id }) => id));
  for (const { id, updated } of local) if (!known.has(id) && updated > (there.get(id)?.updated ?? 0)) push(id, newest);
  return { newer: (await Promise.all(newer.map(({ id }) => fetched(id)))).filter(Boolean), gone: [...known] };
}

/** Sends a conversation soon, once nothing is written into it any more. */
export function push(id, newest) {
  if (!isRemote.value) return;
  clearTimeout(waiting.get(id));
  waiting.set(id, setTimeout(async () => {
    const { chat, isBusy } = newest(id);
    if (isBusy) { push(id, newest); return; }
    waiting.delete(id);
    if (chat) await send(`${ROOT}/${id}`, { method: 'PUT', body: chat }).catch(() => {}); // it is compared again after the next visit
  }, PAUSE_MS));
}

export function pushGone(id) {
  clearTimeout(waiting.get(id));
  if (isRemote.value) send(`${ROOT}/${id}?updated=${Date.now()}`, { method: 'DELETE' }).catch(() => {});
}

async function fetched(id) {
  const reply = await send(`${ROOT}/${id}`);
  return reply.ok ? reply.json() : null;
}

/** Of what was written and deleted, the later counts. */
function newestOf(heads) {
  const found = new Map();
  for (const head of heads) if (head.updated >= (found.get(head.id)?.updated ?? 0)) found.set(head.id, head);
  return found;
}
