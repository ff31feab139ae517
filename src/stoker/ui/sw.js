// Gives the page from the browser's cache while the server is away. It touches nothing but the page's own public files: what
// the server answers is always asked of the server.
const NAME = 'stoker';

const worker = /** @type {any} */ (self);

worker.addEventListener('install', () => worker.skipWaiting());

worker.addEventListener('fetch', (event) => {
  const { request } = event;
  if (request.method === 'GET' && isOfPage(request)) event.respondWith(answered(request));
});

function isOfPage({ url, mode }) {
  const root = new URL('../', self.location.href);
  return url.startsWith(`${root}ui/`) || (mode === 'navigate' && new URL(url).pathname === root.pathname);
}

/** The server's newest version, or the last one that was here. */
async function answered(request) {
  const cache = await caches.open(NAME);
  try {
    const reply = await fetch(request);
    if (reply.ok) await cache.put(keyOf(request), reply.clone());
    return reply;
  } catch (error) {
    const kept = await cache.match(keyOf(request), { ignoreVary: true });
    if (kept) return kept;
    throw error;
  }
}

/** A navigation has the same page behind it, whatever stands behind `?`. */
const keyOf = ({ url, mode }) => (mode === 'navigate' ? new URL('../', self.location.href).href : url);
