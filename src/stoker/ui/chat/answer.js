// Asks the model for the next message of a conversation, or several, and writes them down as they come.
import { amend, chatOf, newId, running, update } from '../state/chats.js';
import { trouble, watchServer, models } from '../state/server.js';
import { noteReply } from '../state/traces.js';
import { grown, path, pruned } from '../state/tree.js';
import { streamChat } from '../wire/api.js';
import { messagesOf, requestOf } from './request.js';
import { Writing } from './writing.js';

const TITLE_LENGTH = 60;
const CUT = 'stoker.cut';

export const stop = (id) => running.value.get(id)?.controller.abort();

/** Adds what a person wrote below a message, and asks for answers. Without `parent` it stands at the end. */
export function say(id, text, { parent = chatOf(id).leaf, attachments = [], num = 1 } = {}) {
  stop(id);
  const chat = chatOf(id);
  const node = { id: newId(), parent, role: 'user', content: text, attachments };
  const title = text.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH) || attachments[0]?.name;
  update(id, { ...grown(chat, node), ...(path(chat).length === 0 && { title }) });
  return ask(id, node, num);
}

/** Another answer beside this one. */
export function regenerate(id, node, num = 1) {
  stop(id);
  return ask(id, chatOf(id).nodes[node.parent], num);
}

/** Takes an answer on where it stands. */
export function goOn(id, node) {
  stop(id);
  const chat = chatOf(id);
  amend(id, node.id, { finish: undefined, error: undefined });
  const body = { ...requestOf(chat, node, node.model), messages: messagesOf(chat, node), add_generation_prompt: false, continue_final_message: true };
  return write(id, [node], body);
}

/** A sibling of an answer that begins with this text, and is then written on. */
export function branch(id, node, content) {
  const chat = chatOf(id);
  const other = { id: newId(), parent: node.parent, role: 'assistant', content, reasoning: node.reasoning ?? '', model: node.model };
  update(id, grown(chat, other));
  return goOn(id, other);
}

/** The results of the calls of an answer; the model goes on with them. */
export function giveResults(id, node, results) {
  const nodes = [];
  for (const call of node.tool_calls) {
    nodes.push({ id: newId(), parent: nodes.at(-1)?.id ?? node.id, role: 'tool', content: results[call.id] ?? '', tool_call_id: call.id, name: call.function.name });
  }
  update(id, grown(chatOf(id), ...nodes));
  return ask(id, nodes.at(-1), 1);
}

export function drop(id, node) {
  stop(id);
  update(id, pruned(chatOf(id), node.id));
}

function ask(id, parent, num) {
  const chat = chatOf(id);
  const model = chat.model || models.value[0]?.id || '';
  const fan = num > 1 ? newId() : undefined;
  const nodes = Array.from({ length: num }, () => ({ id: newId(), parent: parent.id, role: 'assistant', content: '', reasoning: '', model, fan }));
  update(id, { ...grown(chat, ...nodes), leaf: nodes[0].id });
  return write(id, nodes, { ...requestOf(chat, parent, model), ...(num > 1 && { n: num }) });
}

async function write(id, nodes, body) {
  const controller = new AbortController();
  const writings = nodes.map((node) => new Writing(id, node));
  mark(id, { controller, writings });
  const asked = { ...body, timings_per_token: true, return_progress: true };
  try {
    for await (const chunk of streamChat(asked, controller.signal)) {
      noteReply(chunk.id, id);
      for (const choice of chunk.choices.length ? chunk.choices : [{ index: 0 }]) writings[choice.index]?.take(choice, chunk);
    }
    for (const writing of writings) writing.end({});
  } catch (error) {
    const change = controller.signal.aborted ? { finish: 'stopped' } : { error: textOf(error) };
    for (const writing of writings) writing.end(writing.message.finish ? {} : change);
  } finally {
    if (running.value.get(id)?.controller === controller) mark(id, null);
  }
}

function textOf(error) {
  if (!(error instanceof TypeError)) return error.message;
  trouble.value = 'The server cannot be reached. The page tries again.';
  watchServer();
  return 'The connection to the server broke.';
}

function mark(id, run) {
  const next = new Map(running.value);
  if (run) next.set(id, run);
  else next.delete(id);
  running.value = next;
}

/** The page is left: what is being written is noted where this tab finds it at once, and goes on after a reload. */
addEventListener('pagehide', () => {
  const cut = [...running.value].flatMap(([id, { writings }]) => writings.filter(({ isOver }) => !isOver).map(({ nodeId, message }) => ({ id, nodeId, content: message.content, reasoning: message.reasoning })));
  try {
    if (cut.length) sessionStorage.setItem(CUT, JSON.stringify(cut));
  } catch {
    // storage is blocked: what was stored a second ago is what stays
  }
});

/** After a reload: answers that were being written go on. The server has most of their KV still in its cache. */
export function resume() {
  let cut = [];
  try {
    cut = JSON.parse(sessionStorage.getItem(CUT) ?? '[]');
    sessionStorage.removeItem(CUT);
  } catch {
    return;
  }
  for (const { id, nodeId, content, reasoning } of cut) {
    const node = chatOf(id)?.nodes[nodeId];
    if (!node) continue;
    amend(id, nodeId, { content, reasoning });
    const now = chatOf(id).nodes[nodeId];
    if (content && !now.fan) goOn(id, now);
    else if (now.fan) amend(id, nodeId, { finish: 'stopped' });
    else write(id, [{ ...now, reasoning: '' }], requestOf(chatOf(id), chatOf(id).nodes[now.parent], now.model));
  }
}
