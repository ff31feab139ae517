// What the server is: its models, what they can do, and whether it can be reached.
import { signal } from '../vendor/preact.js';
import { getJson } from '../wire/api.js';

const LOOK_MS = 5000;
const RETRY_MS = 1500;

export const models = signal([]);
/** What keeps the page from the server, for people; empty = nothing. */
export const trouble = signal('');
/** `/props` of the model that answers; null = not known. */
export const props = signal(null);
let timer = 0;
let numAsked = 0;
let newest = 0;

/** Looks at the server from time to time, as long as the page can be seen. */
export function watchServer() {
  clearTimeout(timer);
  timer = setTimeout(look, trouble.value ? RETRY_MS : LOOK_MS);
}

addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
addEventListener('online', () => look());

async function look() {
  if (document.hidden) return;
  try {
    const { status, models: states = [] } = await (await fetch('health', { cache: 'no-store' })).json();
    const isBack = trouble.value !== '' && status === 'ok';
    if (status === 'ok') trouble.value = '';
    else trouble.value = `The server is not ready: ${states.map(({ id, state }) => `${id} is ${state}`).join(', ') || status}.`;
    if (isBack || models.value.length === 0) await loadModels();
  } catch {
    trouble.value = 'The server cannot be reached. The page tries again.';
  }
  watchServer();
}

/** Asks for the models. A reply that was overtaken by that to a later request is dropped: it shows an older state. */
export async function loadModels() {
  const number = ++numAsked;
  try {
    const { data } = await getJson('v1/models');
    if (number < newest) return;
    newest = number;
    models.value = data;
    trouble.value = '';
  } catch (error) {
    trouble.value = error instanceof TypeError ? 'The server cannot be reached. The page tries again.' : error.message;
  }
  watchServer();
}

/** What a model does by default, and what it takes beside text. One that is not loaded says nothing. */
export async function loadProps(model) {
  props.value = model ? await getJson(`props?model=${encodeURIComponent(model)}`).catch(() => null) : null;
}
