// Requests to the server that this page came from. All URLs are relative, so the page works below any path prefix.
import { askForKey, isLocked, key } from '../state/key.js';
import { events, lines } from './sse.js';

export class ApiError extends Error {}

/** A reply, whatever its status. A 401 asks for the API key and sends the request again with it. */
export async function send(path, { body, signal } = {}) {
  for (;;) {
    const used = key.value;
    const reply = await fetch(path, {
      method: body ? 'POST' : 'GET',
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
    if (!(await askForKey(used ? 'The server does not know this key.' : ''))) throw new ApiError('The server needs an API key.');
  }
}

export async function getJson(path, options) {
  const reply = await send(path, options);
  if (!reply.ok) throw new ApiError(await messageOf(reply));
  return reply.json();
}

/** The chunks of a streamed chat completion. */
export async function* streamChat(body, signal) {
  const request = { ...body, stream: true, stream_options: { include_usage: true } };
  const reply = await send('v1/chat/completions', { body: request, signal });
  if (!reply.ok) throw new ApiError(await messageOf(reply));
  for await (const { data: chunk } of events(reply.body)) {
    if (chunk.error) throw new ApiError(chunk.error.message ?? 'The server reported an error.');
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
    return `The server answered with status ${reply.status}.`;
  }
}
