// Follows `/engine/events` of one model while the view can be seen. One tab follows, and tells the others.
import { signal } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { key } from '../state/key.js';
import { loadModels } from '../state/server.js';
import { follow } from '../wire/api.js';
import { EMPTY, applied, remembered } from './frames.js';
import { lead } from './leader.js';

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
/** A tab that was hidden for so long follows nothing until it is seen again. */
const HIDDEN_MS = 30_000;

/** @type {Sig<any>} */
export const now = signal(EMPTY);
/** @type {Sig<any[]>} */
export const frames = signal([]);
/** Null, or what keeps the view from the engines; with `isLasting`, for ever. */
export const failure = signal(null);
/** This tab has the stream that all of them show. */
export const isLeading = signal(false);

/** Follows a model. Gives what ends it. @param {string} model */
export function watch(model) {
  let end = null;
  let timer = 0;
  const begin = () => { end ??= join(model); };
  const pause = () => { end?.(); end = null; };
  const change = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(pause, HIDDEN_MS);
    else begin();
  };
  now.value = EMPTY;
  frames.value = [];
  failure.value = null;
  document.addEventListener('visibilitychange', change);
  begin();
  return () => {
    document.removeEventListener('visibilitychange', change);
    clearTimeout(timer);
    pause();
  };
}

/** Tabs share a stream only if they see the same server with the same key. */
const nameOf = (model) => `stoker.engine.${new URL('.', document.baseURI).pathname}.${digest(key.value)}.${model}`;

/** A number that differs for different keys. It hides nothing: code that reads it can read the key. */
const digest = (text) => [...text].reduce((sum, letter) => (Math.imul(sum, 31) + letter.codePointAt(0)) | 0, 7);

function join(model) {
  const name = nameOf(model);
  const channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(name);
  const tell = (message) => channel?.postMessage(message);
  let hasAll = false;
  if (channel) channel.onmessage = ({ data: message }) => {
    if (message.joined) {
      if (isLeading.value) tell({ all: { state: now.value, failure: failure.value } });
    } else if (isLeading.value) {
      return;
    } else if (message.all) {
      hasAll = true;
      show(message.all.state, message.all.failure);
    } else if (message.failure !== undefined) {
      failure.value = message.failure;
    } else if (hasAll || message.name !== 'tick') {
      take(message.name, message.data);
    }
  };
  tell({ joined: true });
  const stop = lead(name, (aborted) => {
    isLeading.value = true;
    return keepFollowing(model, aborted, tell);
  });
  return () => { stop(); isLeading.value = false; channel?.close(); };
}

async function keepFollowing(model, aborted, tell) {
  let waitMs = FIRST_WAIT_MS;
  while (!aborted.aborted) {
    try {
      for await (const { name, data } of follow(`engine/events?hz=10&model=${encodeURIComponent(model)}`, aborted)) {
        if (aborted.aborted) return;
        take(name, data);
        tell({ name, data });
        waitMs = FIRST_WAIT_MS;
      }
    } catch (error) {
      if (aborted.aborted) return;
      const isLasting = error.status === 400 || error.status === 404;
      failure.value = { message: error instanceof TypeError ? t('serverAway') : error.message, isLasting };
      tell({ failure: failure.value });
      if (isLasting) return;
    }
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
  }
}

function take(name, data) {
  if (name === 'news' && data.kind !== 'loading') loadModels();
  const state = applied(now.value, name, data);
  show(state, state.error ? { message: state.error, isLasting: false } : null);
}

function show(state, trouble) {
  failure.value = trouble;
  if (state === now.value) return;
  now.value = state;
  if (state.engines.length) frames.value = remembered(frames.value, state);
}
