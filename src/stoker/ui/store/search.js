// Finds conversations by their words. A worker reads the store, so that a long history delays no typing.
import { openWorker } from '../text/worker.js';

let worker = null;
let asked = '';
let waiting = null;

/** Gives the ids of the stored conversations that have these words in a message, or null if a newer search has begun.
 * @param {string} words in lower case */
export function find(words) {
  waiting?.(null);
  worker ??= started();
  asked = words;
  return new Promise((resolve) => {
    waiting = resolve;
    worker.postMessage(words);
  });
}

function started() {
  const made = openWorker('store/search_worker.js');
  made.addEventListener('message', ({ data: { words, ids } }) => { if (words === asked) waiting?.(ids); });
  made.addEventListener('error', () => { waiting?.([]); worker = null; });
  return made;
}
