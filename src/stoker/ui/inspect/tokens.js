// The tokens of an answer and of its prompt, with what the model thought of each. It asks the server, and knows no DOM.
import { chatOf } from '../state/chats.js';
import { messagesOf } from '../chat/request.js';
import { getJson } from '../wire/api.js';

const TOP = 10;

/** Scores an answer as it stands, by a model or by hand: prompt and answer are computed once more, nothing is sampled.
 * Of an answer that was traced, the very tokens are scored, each with its step; else its text is cut into tokens anew. */
export async function scored(chatId, nodeId, signal) {
  const chat = chatOf(chatId);
  const node = chat.nodes[nodeId];
  const { model } = node;
  const { prompt } = await getJson('apply-template', { body: { model, messages: messagesOf(chat, chat.nodes[node.parent]) }, signal });
  const { tokens: ids } = await getJson('tokenize', { body: { model, content: prompt, add_special: true }, signal });
  const trace = isExact(node) ? node.trace : null;
  const body = { model, prompt: trace ? [...ids, ...trace.ids] : prompt + node.content, echo: true, logprobs: TOP, max_tokens: 1, temperature: 0 };
  const { choices: [{ logprobs }] } = await getJson('v1/completions', { body, signal });
  const tokens = logprobs.tokens.slice(0, -1).map((text, at) => ({ text, logprob: logprobs.token_logprobs[at], top: sorted(logprobs.top_logprobs[at]) }));
  const answer = tokens.slice(ids.length).map((token, at) => ({ ...token, step: trace?.steps[at], isDrafted: trace?.drafted[at] }));
  return { prompt: tokens.slice(0, ids.length), answer, isTraced: trace !== null, ...cachedOf(node, ids.length) };
}

/** The traced tokens are those of the text that is shown: reasoning and calls have tokens that the text does not.
 * @param {Message} node */
const isExact = ({ trace, reasoning, tool_calls: calls }) => Boolean(trace?.ids.length) && !reasoning && !calls?.length;

/** How much of the prompt was cached, and where it was found, if that is known. @param {Message} node @param {number} num */
function cachedOf({ stats, trace }, num) {
  return { cached: Math.min(stats?.cached ?? 0, num), from: trace?.cached ?? null, slot: trace?.slot, queueMs: trace?.queue_ms };
}

const sorted = (top) => Object.entries(top ?? {}).map(([text, logprob]) => ({ text, logprob })).sort((a, b) => b.logprob - a.logprob);

/** What of the known alternatives would be left by these settings, and with which chance. Those not known count as none.
 * The order is that of the server: top k, top p and min p of the model's chances, then the temperature.
 * @param {any[]} top @param {Record<string, number>} settings */
export function resampled(top, settings) {
  const { temperature, topK, topP, minP } = settings;
  if (!top.length) return [];
  if (temperature === 0) return top.map((each, at) => ({ ...each, chance: at === 0 ? 1 : 0 }));
  const chances = top.map(({ logprob }) => Math.exp(logprob));
  let sum = 0;
  const kept = top.filter((_, at) => {
    const isKept = (topK === 0 || at < topK) && (at === 0 || sum < topP) && chances[at] >= minP * chances[0];
    sum += chances[at];
    return isKept;
  });
  const weights = new Map(kept.map((each) => [each.text, Math.exp((each.logprob - top[0].logprob) / temperature)]));
  const total = [...weights.values()].reduce((a, b) => a + b, 0);
  return top.map((each) => ({ ...each, chance: (weights.get(each.text) ?? 0) / total }));
}

/** In bits, of what is known of a position. */
export function entropy(top) {
  return -top.reduce((sum, { logprob }) => sum + Math.exp(logprob) * logprob, 0) / Math.LN2;
}
