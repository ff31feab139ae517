// The words of the page in the language of the person.
import { en } from './en.js';
import { setLanguage } from './format.js';

export * from './format.js';

const NAME = 'stoker.language';
/** What is not English is fetched when it is wanted. `pseudo` shows in tests what was not translated, and what longer words break.
 * @type {Record<string, () => Promise<{words: Record<string, any>}>>} */
const OTHERS = { de: () => import('./de.js'), pseudo: () => import('./pseudo.js') };
export const LANGUAGES = { en: 'English', de: 'Deutsch' };

/** @type {Record<string, any>} */
let words = en;
/** English ones that are fetched later. @type {Record<string, any>} */
let more = {};

/** The words of a key. Some need values, such as a number that decides between singular and plural.
 * @param {string} key @param {any[]} values @returns {string} */
export function t(key, ...values) {
  const found = words[key] ?? /** @type {Record<string, any>} */ (en)[key] ?? more[key];
  return typeof found === 'function' ? found(...values) : found;
}

/** The person's own choice, else the first language of the browser that the page has. It never fails: English is there. */
export async function loadLanguage() {
  const wanted = [kept(), ...navigator.languages.map((name) => name.split('-')[0])].find((name) => name === 'en' || (name && name in OTHERS)) ?? 'en';
  try {
    if (wanted !== 'en') words = (await OTHERS[wanted]()).words;
    setLanguage(wanted in LANGUAGES ? wanted : 'en');
  } catch {
    setLanguage('en'); // the server is away
  }
}

/** The words of the engine view and of the tokens of an answer. */
export async function loadEngineWords() {
  more = (await import('./en_engine.js')).words;
}

/** Shows the page in another language, now and from the next visit on. @param {string} name */
export function chooseLanguage(name) {
  try {
    localStorage.setItem(NAME, name);
  } catch {
    return; // storage is blocked: the browser's language stays
  }
  location.reload();
}

function kept() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}
