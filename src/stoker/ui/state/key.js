// The API key, and whether the page asks for it. It is kept for this tab, or on request for this browser.
import { signal } from '../vendor/preact.js';

const NAME = 'stoker.key';
const found = read(() => sessionStorage.getItem(NAME)) ?? read(() => localStorage.getItem(NAME)) ?? '';

export const key = signal(found);
/** Null, or what the dialog says above its field. */
export const question = signal(null);
/** The server wants a key that it has not been given: nothing is shown before. */
export const isLocked = signal(false);
let waiting = [];

/** Resolves to true when a key was given. Requests that ask at the same time share one dialog. */
export function askForKey(reason) {
  question.value = reason;
  isLocked.value = true;
  return new Promise((resolve) => waiting.push(resolve));
}

export function giveKey(value, isKept) {
  key.value = value;
  read(() => sessionStorage.setItem(NAME, value));
  read(() => (isKept ? localStorage.setItem(NAME, value) : localStorage.removeItem(NAME)));
  settle(true);
}

export function refuseKey() {
  settle(false);
}

function settle(isGiven) {
  question.value = null;
  for (const resolve of waiting.splice(0)) resolve(isGiven);
}

function read(action) {
  try {
    return action();
  } catch {
    return undefined; // storage is blocked: the key lives as long as the page
  }
}
