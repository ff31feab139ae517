// Follows `/engine/events` of one model while the view can be seen. Belongs to the engine view.
import { signal } from '../vendor/preact.js';
import { follow } from '../wire/api.js';
import { EMPTY, applied, remembered } from './frames.js';

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;

export const now = signal(EMPTY);
export const frames = signal([]);
/** Null, or what keeps the view from the engines; with `isLasting`, for ever. */
export const failure = signal(null);

/** Gives what ends it. Hidden pages follow nothing: a browser has six connections to a server, for all its tabs. */
export function watch(model) {
  let controller = null;
  const change = () => {
    if (document.hidden) {
      controller?.abort();
      controller = null;
    } else if (controller === null) {
      controller = new AbortController();
      keepFollowing(model, controller.signal);
    }
  };
  now.value = EMPTY;
  frames.value = [];
  failure.value = null;
  document.addEventListener('visibilitychange', change);
  change();
  return () => {
    document.removeEventListener('visibilitychange', change);
    controller?.abort();
  };
}

async function keepFollowing(model, signal) {
  let waitMs = FIRST_WAIT_MS;
  while (!signal.aborted) {
    try {
      for await (const { name, data } of follow(`engine/events?hz=10&model=${encodeURIComponent(model)}`, signal)) {
        if (signal.aborted) return;
        take(name, data);
        waitMs = FIRST_WAIT_MS;
      }
    } catch (error) {
      if (signal.aborted) return;
      const isLasting = error.status === 400 || error.status === 404;
      failure.value = { message: error instanceof TypeError ? 'The server cannot be reached.' : error.message, isLasting };
      if (isLasting) return;
    }
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  }
}

function take(name, data) {
  const state = applied(now.value, name, data);
  failure.value = state.error ? { message: state.error, isLasting: false } : null;
  if (state === now.value) return;
  now.value = state;
  if (state.engines.length) frames.value = remembered(frames.value, state);
}
