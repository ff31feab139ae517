// Which requests in the engine are this page's own, by the ids of their replies.
import { signal } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { chatOf, openId, titleOf } from './chats.js';
import { showChat } from './view.js';

const MAX_KNOWN = 200;
const known = signal(/** @type {Map<string, string>} */ (new Map()));

/** A reply with this id belongs to a conversation. */
export function noteReply(replyId, chatId) {
  if (!replyId || known.value.has(replyId)) return;
  known.value = new Map([...known.value].slice(1 - MAX_KNOWN)).set(replyId, chatId);
}

/** The conversation of a request: the engine adds the number of the choice to the id of a reply. */
export function owner(requestId) {
  const chat = chatOf(known.value.get(requestId.replace(/-\d+$/, '')));
  if (!chat) return null;
  return { title: t('yourChat', titleOf(chat)), show: (event) => { event.preventDefault(); openId.value = chat.id; showChat(); } };
}
