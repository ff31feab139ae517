// Which requests in the engine are this page's own, by the ids of their replies.
import { signal } from '../vendor/preact.js';
import { chatOf, openId } from './chats.js';

const MAX_KNOWN = 200;
const known = signal(new Map());

/** A reply with this id belongs to a conversation. */
export function noteReply(replyId, chatId) {
  if (!replyId || known.value.has(replyId)) return;
  known.value = new Map([...known.value, [replyId, chatId]].slice(-MAX_KNOWN));
}

/** The conversation of a request: the engine adds the number of the choice to the id of a reply. */
export function owner(requestId) {
  const chat = chatOf(known.value.get(requestId.replace(/-\d+$/, '')));
  if (!chat) return null;
  return { title: `you · ${chat.title}`, show: (event) => { event.preventDefault(); openId.value = chat.id; location.hash = ''; } };
}
