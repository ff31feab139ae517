// Asks the model for the next message of a conversation, and writes it down as it comes.
import { signal } from '../vendor/preact.js';
import { amend, chatOf, update } from '../state/chats.js';
import { trouble, loadModels, models } from '../state/server.js';
import { streamChat } from '../wire/api.js';

const STORE_MS = 1000;
const TITLE_LENGTH = 60;

/** By conversation, what stops its answer. */
export const running = signal(new Map());

export const stop = (id) => running.value.get(id)?.abort();

/** Adds what a person wrote behind the first `kept` messages, and asks for the answer. */
export function say(id, text, kept = chatOf(id).messages.length) {
  stop(id);
  const messages = [...chatOf(id).messages.slice(0, kept), { role: 'user', content: text }];
  update(id, { messages, ...(kept === 0 && { title: text.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH) }) });
  return answer(id);
}

/** Drops the last answer and asks again. */
export function regenerate(id) {
  stop(id);
  const { messages } = chatOf(id);
  if (messages.at(-1)?.role === 'assistant') update(id, { messages: messages.slice(0, -1) });
  return answer(id);
}

async function answer(id) {
  const controller = new AbortController();
  const chat = chatOf(id);
  const model = chat.model || models.value[0]?.id || '';
  update(id, { messages: [...chat.messages, { role: 'assistant', content: '', reasoning: '', model }] });
  mark(id, controller);
  const writing = new Writing(id, () => running.value.get(id) === controller);
  try {
    for await (const chunk of streamChat(requestOf(chat, model), controller.signal)) writing.take(chunk);
    writing.end({});
  } catch (error) {
    writing.end(controller.signal.aborted ? { finish: 'stopped' } : { error: textOf(error) });
  } finally {
    if (running.value.get(id) === controller) mark(id, null);
  }
}

function textOf(error) {
  if (!(error instanceof TypeError)) return error.message;
  trouble.value = 'The server cannot be reached. The page tries again.';
  loadModels();
  return 'The connection to the server broke.';
}

function mark(id, controller) {
  const next = new Map(running.value);
  if (controller) next.set(id, controller);
  else next.delete(id);
  running.value = next;
}

function requestOf(chat, model) {
  const messages = chat.messages.filter((each) => each.content).map(({ role, content }) => ({ role, content }));
  if (chat.system.trim()) messages.unshift({ role: 'system', content: chat.system });
  return { messages, ...(model && { model }), ...chat.sampling };
}

/** The message that is being written. It is painted once per frame and stored once per second, not per token. */
class Writing {
  constructor(id, isCurrent) {
    this.id = id;
    this.isCurrent = isCurrent;
    this.message = { content: '', reasoning: '', stats: {} };
    this.begun = performance.now();
    this.first = 0;
    this.chunks = 0;
    this.frame = 0;
    this.stored = this.begun;
  }

  take(chunk) {
    const delta = chunk.choices?.[0]?.delta ?? {};
    const more = delta.content ?? '';
    const thought = delta.reasoning_content ?? '';
    if (more || thought) this.count();
    this.message.content += more;
    this.message.reasoning += thought;
    if (chunk.choices?.[0]?.finish_reason) this.message.finish = chunk.choices[0].finish_reason;
    if (chunk.usage) this.measure(chunk.usage, chunk.timings);
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  count() {
    const now = performance.now();
    this.first ||= now;
    this.chunks += 1;
    const seconds = (now - this.first) / 1000;
    this.message.stats = { firstMs: this.first - this.begun, speed: seconds > 0.2 ? (this.chunks - 1) / seconds : 0 };
  }

  measure(usage, timings) {
    const seconds = (performance.now() - this.first) / 1000;
    const tokens = usage.completion_tokens;
    const speed = timings?.predicted_per_second ?? (tokens - 1) / seconds;
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    Object.assign(this.message.stats, { tokens, prompt: usage.prompt_tokens, cached, speed: tokens > 1 ? speed : 0 });
  }

  paint() {
    this.frame = 0;
    if (!this.isCurrent()) return;
    const isStored = performance.now() - this.stored > STORE_MS;
    if (isStored) this.stored = performance.now();
    amend(this.id, { ...this.message, stats: { ...this.message.stats } }, { isStored });
  }

  end(change) {
    cancelAnimationFrame(this.frame);
    if (this.isCurrent()) amend(this.id, { ...this.message, ...change });
  }
}
