// Starts the scripts that run beside the page. The page's policy lets only these be started.
const SCRIPTS = ['text/highlight_worker.js', 'store/search_worker.js', 'sw.js'];
const urlOf = (name) => String(new URL(`../${name}`, import.meta.url));
const policy = globalThis.trustedTypes?.createPolicy('stoker', {
  createScriptURL: (name) => {
    if (!SCRIPTS.includes(name)) throw new TypeError('This script is none of the page.');
    return urlOf(name);
  },
});

/** @param {string} name */
export const scriptUrl = (name) => policy?.createScriptURL(name) ?? urlOf(name);

/** @param {'text/highlight_worker.js' | 'store/search_worker.js'} name */
export const openWorker = (name) => new Worker(scriptUrl(name), { type: 'module' });
