// What the server is: its models, what they can do, and whether it can be reached.
import { t } from '../locale/index.js';
import { signal } from '../vendor/preact.js';
import { getJson } from '../wire/api.js';
import { isLocked } from './key.js';

const LOOK_MS = 5000;
/** After so long a server that is away is tried again, after each further failure later. */
const RETRY_MS = 1000;
const LONGEST_RETRY_MS = 10_000;

/** @type {Sig<ServedModel[]>} */
export const models = signal([]);
/** What keeps the page from the server, for people; empty = nothing. */
export const trouble = signal('');
/** What `/health` said last; null = nothing yet. */
export const health = signal(null);
/** `/props` of the model that answers; null = not known. */
export const props = signal(null);
let timer = 0;
let retryMs = RETRY_MS;
let isLooking = false;
const newestModels = overtaking();
const newestProps = overtaking();

/** Models that write text: those that say nothing of themselves, because they are not loaded, may. */
export const writers = () => models.value.filter(({ capabilities }) => !capabilities || capabilities.includes('completion'));

/** The model that answers in a conversation. */
export const modelOf = (chat) => chat.model || writers()[0]?.id || models.value[0]?.id || '';

/** A request has not reached the server. */
export function noteAway() {
  trouble.value = t('serverAway');
  watchServer();
}

/** Looks at the server from time to time, as long as the page can be seen. */
export function watchServer() {
  clearTimeout(timer);
  timer = setTimeout(look, trouble.value ? retryMs : LOOK_MS);
}

addEventListener('visibilitychange', () => { if (!document.hidden) look(); });
addEventListener('online', () => look());

/** The health needs no key: the request carries none, and its reply does not tell whether a key is right. */
export async function look() {
  if (document.hidden || isLooking) return;
  isLooking = true;
  try {
    health.value = await (await fetch('health', { cache: 'no-store' })).json();
    retryMs = RETRY_MS;
    if (!isLocked.value) await noteHealth(health.value);
  } catch {
    trouble.value = t('serverAway');
    retryMs = Math.min(1.5 * retryMs, LONGEST_RETRY_MS);
  }
  isLooking = false;
  watchServer();
}

async function noteHealth({ status, models: states = [] }) {
  const isBack = trouble.value !== '' && status === 'ok';
  if (status === 'ok') trouble.value = '';
  else trouble.value = t('serverNotReady', states.map(({ id, state, progress }) => t('modelIs', id, state, progress)), status);
  if (isBack) await loadModels();
}

/** Asks for the models. */
export async function loadModels() {
  const isNewest = newestModels();
  try {
    const { data } = await getJson('v1/models');
    if (!isNewest()) return;
    models.value = data;
    trouble.value = '';
  } catch (error) {
    trouble.value = error instanceof TypeError ? t('serverAway') : error.message;
  }
  watchServer();
}

/** What a model does by default, and what it takes beside text. One that is not loaded says nothing. */
export async function loadProps(model) {
  const isNewest = newestProps();
  const found = model ? await getJson(`props?model=${encodeURIComponent(model)}`).catch(() => null) : null;
  if (isNewest()) props.value = found;
}

/** For requests that overlap: gives each a function that is asked when its reply has come, and says whether the reply counts.
 * A reply that was overtaken by that to a later request shows an older state. */
function overtaking() {
  let numAsked = 0;
  let newest = 0;
  return () => {
    const number = ++numAsked;
    return () => {
      if (number < newest) return false;
      newest = number;
      return true;
    };
  };
}
