// Conversations as files: our own JSON, Markdown, and what other programs write. Values only.
import { t } from '../locale/index.js';
import { newId } from './ids.js';
import { titleOf } from '../state/chats.js';
import { path, sound, textOf, treeOf } from '../state/tree.js';

const VERSION = 1;

export function exported(chats) {
  return JSON.stringify({ stoker: VERSION, chats: chats.map(({ id, ...chat }) => chat) }, null, 1);
}

const HEADINGS = { user: 'you', assistant: 'model', tool: 'toolResult' };

/** The path that is shown, as a person reads it. */
export function asMarkdown(chat) {
  const parts = path(chat).map(({ role, content, model }) => `## ${HEADINGS[role] ? t(HEADINGS[role]) : role}${model ? ` (${model})` : ''}\n\n${content}`);
  return [`# ${titleOf(chat)}`, chat.system && `> ${chat.system.replaceAll('\n', '\n> ')}`, ...parts].filter(Boolean).join('\n\n').concat('\n');
}

/** The conversations in a file of this program, of llama-server or of Open WebUI, or in a list of OpenAI's messages.
 * @throws {Error} in words, if it is none of these */
export function imported(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(t('fileIsNoJson'));
  }
  if (value?.stoker > VERSION) throw new Error(t('fileIsNewer'));
  const chats = value?.stoker ? value.chats : chatsOf(value);
  const found = (Array.isArray(chats) ? chats : []).filter((each) => each && typeof each === 'object').map(sound).filter(({ nodes }) => Object.keys(nodes).length);
  if (!found.length) throw new Error(t('fileHasNoChat'));
  return found;
}

function chatsOf(value) {
  if (Array.isArray(value)) return value[0]?.role ? [listed('', value)] : value.flatMap(chatsOf);
  if (value?.conv && Array.isArray(value.messages)) return [llamaServers(value)];
  if (value?.chat?.history?.messages) return [openWebUIs(value)];
  if (Array.isArray(value?.messages)) return [listed(value.title ?? '', value.messages)];
  return [];
}

function listed(title, messages) {
  const own = messages.filter(({ role }) => role !== 'system').map(({ role, content, tool_calls, tool_call_id }) => ({ role, content: textOf(content), tool_calls, tool_call_id }));
  return chat(title, treeOf(own, newId), textOf(messages.find(({ role }) => role === 'system')?.content));
}

/** A tree by `id`, `parent`; its root has no content. */
function llamaServers({ conv, messages }) {
  const roots = new Set(messages.filter(({ type }) => type === 'root').map(({ id }) => id));
  const isShown = new Set(messages.filter(({ role, type }) => type !== 'root' && role !== 'system').map(({ id }) => id));
  const nodes = messages.filter(({ id }) => isShown.has(id)).map(({ id, parent, role, content, thinking }) => ({
    id: String(id), parent: parent && !roots.has(parent) && isShown.has(parent) ? String(parent) : '', role, content: textOf(content), reasoning: thinking || '',
  }));
  const tree = { nodes: Object.fromEntries(nodes.map((node) => [node.id, node])), leaf: String(conv.currNode ?? nodes.at(-1)?.id ?? '') };
  return chat(conv.name, tree, textOf(messages.find(({ role }) => role === 'system')?.content));
}

function openWebUIs({ title, chat: { history, system } }) {
  const nodes = Object.values(history.messages).map(({ id, parentId, role, content, model }) => ({ id, parent: parentId ?? '', role, content: textOf(content), model }));
  return chat(title, { nodes: Object.fromEntries(nodes.map((node) => [node.id, node])), leaf: history.currentId ?? nodes.at(-1)?.id ?? '' }, system);
}

function chat(title, tree, system) {
  const first = Object.values(tree.nodes)[0]?.content ?? '';
  if (!Object.keys(tree.nodes).length) return null;
  return { title: title || first.slice(0, 60), updated: Date.now(), system: system ?? '', sampling: {}, model: '', tools: '', ...tree };
}
