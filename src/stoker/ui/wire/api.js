// Requests to the server that this page came from. All URLs are relative, so the page works below any path prefix.
import { t } from '../locale/index.js';
import { askForKey, isLocked, key } from '../state/key.js';
import { events, lines } from './sse.js';

export class ApiError extends Error {}

/** @typedef {{body?: any, signal?: AbortSignal, method?: string}} Options */

/** A reply, whatever its status. A 401 asks for the API key and sends the request again with it.
 * @param {string} path @param {Options} [options] */
export async function send(path, { body, signal, method = body ? 'POST' : 'GET' } = {}) {
  for (;;) {
    const used = key.value;
    const reply = await fetch(path, {
      method,
      headers: { ...(body && { 'Content-Type': 'application/json' }), ...(used && { Authorization: `Bearer ${used}` }) },
      body: body && JSON.stringify(body),
      signal,
      cache: 'no-store',
    });
    if (reply.status !== 401) {
      isLocked.value = false;
      return reply;
    }
    if (used !== key.value) continue; // another request has asked for the key in the meantime
    if (!(await askForKey(used ? t('keyUnknown') : ''))) throw new ApiError(t('keyMissing'));
  }
}

/** @param {string} path @param {Options} [options] @returns {Promise<any>} */
export async function getJson(path, options) {
  const reply = await send(path, options);
  if (!reply.ok) throw new ApiError(await messageOf(reply));
  return reply.json();
}

/** The chunks of a streamed chat completion. */
export const streamChat = (body, signal) => stream('v1/chat/completions', body, signal);

/** The chunks of a streamed completion of a text. */
export const streamCompletion = (body, signal) => stream('v1/completions', body, signal);

async function* stream(path, body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const reply = await send(path, { body: request, signal });
  if (!reply.ok) throw new ApiError(await messageOf(reply));
  for await (const { data: chunk } of events(reply.body)) {
    if (chunk.error) throw new ApiError(chunk.error.message ?? t('serverError'));
    yield chunk;
  }
}

/** The states of a download, to its end. */
export async function* pull(model, signal) {
  const reply = await send('api/pull', { body: { model }, signal });
  if (!reply.ok) throw new ApiError(await messageOf(reply));
  for await (const state of lines(reply.body)) {
    if (state.error) throw new ApiError(state.error);
    yield state;
  }
}

/** The events of a stream that is followed, each with its name. */
export async function* follow(path, signal) {
  const reply = await send(path, { signal });
  if (!reply.ok) throw Object.assign(new ApiError(await messageOf(reply)), { status: reply.status });
  yield* events(reply.body);
}

async function messageOf(reply) {
  const text = await reply.text();
  try {
    const { error } = JSON.parse(text);
    return error.message ?? error;
  } catch {
    return t('serverStatus', reply.status);
  }
}
