// A conversation as a tree of messages: an edited or repeated message is a sibling. Values only; nothing is stored here.
//
//     chat.nodes: { id: { id, parent, role, content, … } }     chat.leaf: the last message of the path that is shown

const ROOT = '';

/** The messages from the first to the leaf. */
export function path(chat) {
  const found = [];
  for (let node = chat.nodes[chat.leaf]; node; node = chat.nodes[node.parent]) found.push(node);
  return found.reverse();
}

export const children = (chat, parent) => Object.values(chat.nodes).filter((node) => node.parent === parent);

/** All messages at the place of this one, the oldest first. */
export const siblings = (chat, node) => children(chat, node.parent);

/** The newest leaf below a message. */
export function leafBelow(chat, id) {
  let leaf = id;
  for (let below = children(chat, id); below.length; below = children(chat, leaf)) leaf = below.at(-1).id;
  return leaf;
}

/** With new messages; the last one is the leaf. */
export function grown(chat, ...nodes) {
  return { nodes: { ...chat.nodes, ...Object.fromEntries(nodes.map((node) => [node.id, node])) }, leaf: nodes.at(-1).id };
}

/** Without a message and all below it. */
export function pruned(chat, id) {
  const gone = new Set([id]);
  for (const queue = [id]; queue.length;) {
    for (const node of children(chat, queue.pop())) { gone.add(node.id); queue.push(node.id); }
  }
  const nodes = Object.fromEntries(Object.entries(chat.nodes).filter(([key]) => !gone.has(key)));
  const { parent } = chat.nodes[id];
  if (!gone.has(chat.leaf)) return { nodes, leaf: chat.leaf };
  const rest = { ...chat, nodes };
  const brother = children(rest, parent).at(-1);
  return { nodes, leaf: brother ? leafBelow(rest, brother.id) : parent };
}

/** A conversation that the page can show, whatever a file or an older page made of it: what must be a text is one, a
 * message without a known parent begins the conversation, and what hangs in a circle goes. */
export function sound(chat) {
  const found = Object.entries(chat.nodes ?? {}).filter(([, node]) => typeof node?.role === 'string');
  const known = new Set(found.map(([id]) => id));
  const byParent = new Map();
  for (const [id, node] of found) {
    const parent = known.has(String(node.parent)) ? String(node.parent) : ROOT;
    byParent.set(parent, [...(byParent.get(parent) ?? []), soundMessage({ ...node, id, parent })]);
  }
  const nodes = {};
  for (const queue = [ROOT]; queue.length;) {
    for (const node of byParent.get(queue.shift()) ?? []) { nodes[node.id] = node; queue.push(node.id); }
  }
  const leaf = nodes[chat.leaf] ? chat.leaf : leafBelow({ nodes }, ROOT);
  const texts = Object.fromEntries(['system', 'model', 'tools'].map((name) => [name, textOf(chat[name])]));
  const adapters = Object.fromEntries(Object.entries(chat.adapters ?? {}).filter(([, scale]) => typeof scale === 'number'));
  return { ...chat, ...texts, adapters, title: textOf(chat.title), updated: Number(chat.updated) || 0, sampling: { ...chat.sampling }, nodes, leaf };
}

const isTrace = (value) => Array.isArray(value?.steps) && Array.isArray(value.ids) && Array.isArray(value.drafted);
const list = (isSound) => (value) => (Array.isArray(value) ? value.filter(isSound) : []);
const FIELDS = {
  content: textOf, reasoning: textOf, error: textOf,
  stats: (value) => Object.fromEntries(Object.entries(value ?? {}).filter(([, each]) => typeof each === 'number')),
  trace: (value) => (isTrace(value) ? value : undefined),
  attachments: list((each) => typeof (each?.url ?? each?.text) === 'string'),
  tool_calls: list((call) => typeof call?.function?.name === 'string'),
};

function soundMessage(node) {
  const fields = Object.entries(node).map(([name, value]) => [name, value !== undefined && name in FIELDS ? FIELDS[name](value) : value]);
  return { content: '', ...Object.fromEntries(fields) };
}

/** Content is a text, or parts of which some are texts. */
export function textOf(content) {
  return Array.isArray(content) ? content.map((part) => part?.text ?? '').join('') : String(content ?? '');
}

/** A tree from a list of messages. */
export function treeOf(messages, newId) {
  let parent = ROOT;
  const nodes = {};
  for (const message of messages) {
    const id = newId();
    nodes[id] = { ...message, id, parent };
    parent = id;
  }
  return { nodes, leaf: parent };
}
