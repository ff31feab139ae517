// Has the browser keep the page, so that conversations can be read while the server is away. Only secure contexts can:
// this machine's own addresses, and TLS.
import { scriptUrl } from '../text/worker.js';

const NAME = 'stoker';

/** Keeps what the page has fetched so far, from the browser's own cache; the service worker keeps what comes later. */
export async function keepPage() {
  if (!('serviceWorker' in navigator) || !isSecureContext) return;
  try {
    await navigator.serviceWorker.register(scriptUrl('sw.js'), { scope: './' });
    const cache = await caches.open(NAME);
    const root = String(new URL('.', document.baseURI));
    const files = performance.getEntriesByType('resource').map(({ name }) => name).filter((name) => name.startsWith(`${root}ui/`));
    for (const url of new Set(files)) await keep(cache, url, {});
    await keep(cache, root, { headers: { Accept: 'text/html' } });
  } catch {
    // a private window, or no room: the page works as long as the server is there
  }
}

async function keep(cache, url, options) {
  if (await cache.match(url, { ignoreVary: true })) return;
  const reply = await fetch(url, { ...options, cache: 'force-cache' });
  if (reply.ok) await cache.put(url, reply);
}
