// One message as it comes. It is painted once per frame and stored once per second, not per token.
import { amend } from '../state/chats.js';

const STORE_MS = 1000;

export class Writing {
  /** Writes into a message, behind what it has already.
   * @param {string} chatId @param {Message} node @param {{isOneOfMany?: boolean}} [options] the request has several answers,
   * so that the counts in the reply are those of all of them */
  constructor(chatId, node, { isOneOfMany = false } = {}) {
    this.isOneOfMany = isOneOfMany;
    this.chatId = chatId;
    this.nodeId = node.id;
    /** @type {any} */
    this.message = { content: node.content ?? '', reasoning: node.reasoning ?? '', stats: {}, tool_calls: undefined, progress: undefined, trace: undefined };
    this.traced = tracedSoFar(node);
    this.begun = performance.now();
    this.first = 0;
    this.thoughtFrom = 0;
    this.tokens = 0;
    this.frame = 0;
    this.stored = this.begun;
    this.isOver = false;
  }

  /** @param choice that of a chunk. @param chunk with what stands beside its choices. */
  take(choice, chunk) {
    const delta = choice?.delta ?? {};
    this.message.id_of_reply = chunk.id;
    this.message.progress = chunk.prompt_progress;
    if (delta.content || delta.reasoning_content || delta.tool_calls) this.first ||= performance.now();
    this.message.content += delta.content ?? '';
    if (delta.reasoning_content) {
      this.thoughtFrom ||= performance.now();
      this.message.reasoning += delta.reasoning_content;
      this.message.thought_ms = performance.now() - this.thoughtFrom;
    }
    for (const call of delta.tool_calls ?? []) this.takeCall(call);
    if (chunk.stoker && this.traced) this.trace(chunk.stoker);
    if (choice?.finish_reason) this.message.finish = choice.finish_reason;
    if (chunk.timings && (choice?.delta || !this.isOneOfMany)) this.measure(chunk);
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  /** Where the tokens came from; what an answer began with before it went on has a trace of its own. */
  trace({ ids, steps, drafted, ...end }) {
    this.traced.ids.push(...ids);
    this.traced.steps.push(...steps);
    this.traced.drafted.push(...drafted);
    if (!this.traced.cached) Object.assign(this.traced, end);
  }

  takeCall({ index, id, function: { name, arguments: more = '' } }) {
    const calls = [...(this.message.tool_calls ?? [])];
    const before = calls[index] ?? { id, type: 'function', function: { name, arguments: '' } };
    calls[index] = { ...before, function: { ...before.function, arguments: before.function.arguments + more } };
    this.message.tool_calls = calls;
  }

  measure({ timings, usage }) {
    const { cache_n: cached, prompt_n: computed, predicted_n: tokens, draft_n: drafted, draft_n_accepted: kept } = timings;
    const own = this.isOneOfMany ? this.traced?.ids.length : undefined;
    const speed = own === undefined ? timings.predicted_per_second : (1000 * own) / (performance.now() - this.first);
    this.message.stats = {
      firstMs: this.first - this.begun, tokens: own ?? tokens, cached, prompt: cached + computed, drafted, kept, reasoning: usage?.completion_tokens_details?.reasoning_tokens,
      speed: tokens > 1 ? speed : 0, promptSpeed: computed > 8 ? timings.prompt_per_second : 0,
    };
  }

  paint() {
    this.frame = 0;
    if (this.isOver) return;
    const isStored = performance.now() - this.stored > STORE_MS;
    if (isStored) this.stored = performance.now();
    amend(this.chatId, this.nodeId, this.change, { isStored });
  }

  get change() {
    return { ...this.message, stats: { ...this.message.stats } };
  }

  end(change) {
    cancelAnimationFrame(this.frame);
    if (!this.isOver) amend(this.chatId, this.nodeId, { ...this.change, progress: undefined, ...(this.traced?.ids.length && { trace: this.traced }), ...change });
    this.isOver = true;
  }
}

/** The trace of what an answer has already; null where a part of it has none, so that all of it has none.
 * @param {Message} node */
function tracedSoFar({ content, trace }) {
  if (content && !trace) return null;
  return { ...trace, ids: [...trace?.ids ?? []], steps: [...trace?.steps ?? []], drafted: [...trace?.drafted ?? []] };
}
