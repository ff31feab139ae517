// Reasoning that stands in the text of an answer, as older servers and files of other programs have it.
const MARKED = /^\s*<think(?:ing)?>([^]*?)(?:<\/think(?:ing)?>|$)/;

/** The reasoning of a message and the rest. A field of its own counts first. */
export function splitThoughts({ role, content, reasoning }) {
  const found = role === 'assistant' && !reasoning ? MARKED.exec(content) : null;
  return found ? { thought: found[1].trim(), content: content.slice(found[0].length).trimStart() } : { thought: reasoning, content };
}
