// Asks models for the next message of a conversation, or several, and writes them down as they come.
import { t } from '../locale/index.js';
import { amend, chatOf, running, update } from '../state/chats.js';
import { modelOf, noteAway } from '../state/server.js';
import { noteReply } from '../state/traces.js';
import { grown, path, pruned } from '../state/tree.js';
import { newId } from '../store/ids.js';
import { streamChat } from '../wire/api.js';
import { messagesOf, requestOf } from './request.js';
import { Writing } from './writing.js';

const TITLE_LENGTH = 60;
const CUT = 'stoker.cut';

export const stop = (id) => running.value.get(id)?.controller.abort();

/** Adds what a person wrote below a message, and asks for answers. Without `parent` it stands at the end.
 * @param {string} id @param {string} text @param {{parent?: string, attachments?: any[], num?: number, models?: string[]}} [options] `models`: one answer of each */
export function say(id, text, { parent = chatOf(id).leaf, attachments = [], num = 1, models = [] } = {}) {
  stop(id);
  const chat = chatOf(id);
  const node = { id: newId(), parent, role: 'user', content: text, attachments };
  const title = text.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH) || attachments[0]?.name;
  update(id, { ...grown(chat, node), ...(path(chat).length === 0 && { title }) });
  return models.length > 1 ? compare(id, node, models) : ask(id, node, num);
}

/** Another answer beside this one. */
export function regenerate(id, node, num = 1) {
  stop(id);
  return ask(id, chatOf(id).nodes[node.parent], num);
}

/** Takes an answer on where it stands. */
export function goOn(id, node) {
  stop(id);
  amend(id, node.id, { finish: undefined, error: undefined });
  return write(id, [goingOn(chatOf(id), node)]);
}

function goingOn(chat, node) {
  const body = { ...requestOf(chat, node, node.model), messages: messagesOf(chat, node), add_generation_prompt: false, continue_final_message: true };
  return { nodes: [node], body };
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
  const model = modelOf(chat);
  const nodes = begun(id, parent, Array(num).fill(model));
  return write(id, [{ nodes, body: { ...requestOf(chat, parent, model), ...(num > 1 && { n: num }) } }]);
}

/** The same question to several models, side by side. */
function compare(id, parent, models) {
  const chat = chatOf(id);
  const nodes = begun(id, parent, models);
  return write(id, nodes.map((node) => ({ nodes: [node], body: requestOf(chat, parent, node.model) })));
}

/** Empty answers to a message, one for each name of a model; the first of them is on the path that is shown. */
function begun(id, parent, models) {
  const fan = models.length > 1 ? newId() : undefined;
  const nodes = models.map((model) => ({ id: newId(), parent: parent.id, role: 'assistant', content: '', reasoning: '', model, fan }));
  update(id, { ...grown(chatOf(id), ...nodes), leaf: nodes[0].id });
  return nodes;
}

/** Sends requests at the same time and writes the answers into their messages. One Stop ends them all.
 * @param {{nodes: any[], body: any}[]} requests the choices of each are written into its nodes */
async function write(id, requests) {
  const controller = new AbortController();
  const each = requests.map(({ nodes, body }) => ({ body, writings: nodes.map((node) => new Writing(id, node, { isOneOfMany: nodes.length > 1 })) }));
  mark(id, { controller, writings: each.flatMap(({ writings }) => writings) });
  await Promise.all(each.map(({ body, writings }) => stream(id, body, writings, controller)));
  if (running.value.get(id)?.controller === controller) mark(id, null);
}

async function stream(id, body, writings, controller) {
  const asked = { ...body, timings_per_token: true, return_progress: true, stoker: { trace: true } };
  try {
    for await (const chunk of streamChat(asked, controller.signal)) {
      noteReply(chunk.id, id);
      for (const choice of chunk.choices.length ? chunk.choices : [{ index: 0 }]) writings[choice.index]?.take(choice, chunk);
    }
    for (const writing of writings) writing.end({});
  } catch (error) {
    const change = controller.signal.aborted ? { finish: 'stopped' } : { error: textOf(error) };
    for (const writing of writings) writing.end(writing.message.finish ? {} : change);
  }
}

function textOf(error) {
  if (!(error instanceof TypeError)) return error.message;
  noteAway();
  return t('connectionBroke');
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
  const requests = new Map();
  for (const { id, nodeId, content, reasoning } of cutAnswers()) {
    if (!chatOf(id)?.nodes[nodeId]) continue;
    amend(id, nodeId, { content, reasoning: content ? reasoning : '' });
    const chat = chatOf(id);
    const node = chat.nodes[nodeId];
    const request = content ? goingOn(chat, node) : { nodes: [node], body: requestOf(chat, chat.nodes[node.parent], node.model) };
    requests.set(id, [...(requests.get(id) ?? []), request]);
  }
  for (const [id, each] of requests) write(id, each);
}

function cutAnswers() {
  try {
    const cut = JSON.parse(sessionStorage.getItem(CUT) ?? '[]');
    sessionStorage.removeItem(CUT);
    return cut;
  } catch {
    return [];
  }
}
