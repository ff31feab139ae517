// Starts the scripts that compute beside the page. The page's policy lets only these be started.
const SCRIPTS = ['text/highlight_worker.js', 'store/search_worker.js'];
const urlOf = (name) => String(new URL(`../${name}`, import.meta.url));
const policy = globalThis.trustedTypes?.createPolicy('stoker', {
  createScriptURL: (name) => {
    if (!SCRIPTS.includes(name)) throw new TypeError('This script is none of the page.');
    return urlOf(name);
  },
});

/** @param {'text/highlight_worker.js' | 'store/search_worker.js'} name */
export function openWorker(name) {
  return new Worker(policy?.createScriptURL(name) ?? urlOf(name), { type: 'module' });
}
