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
  const below = children(chat, id);
  return below.length ? leafBelow(chat, below.at(-1).id) : id;
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
