// What the server is: its models, and whether it can be reached.
import { signal } from '../vendor/preact.js';
import { getJson } from '../wire/api.js';

const RETRY_MS = 3000;

export const models = signal([]);
/** What keeps the page from the server, for people; empty = nothing. */
export const trouble = signal('');

export async function loadModels() {
  try {
    models.value = (await getJson('v1/models')).data;
    trouble.value = '';
  } catch (error) {
    trouble.value = error instanceof TypeError ? 'The server cannot be reached. The page tries again.' : error.message;
    if (error instanceof TypeError) setTimeout(loadModels, RETRY_MS);
  }
}
