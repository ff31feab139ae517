// One tab of a browser does a work for all of them: a browser has six connections to a server, however many tabs are open.
const BEAT_MS = 1000;
const DEAD_MS = 3500;

/** Has `work` done by this tab while no other tab with the same name does it; it is done again by the next one when this
 * one stops. Where there are no locks, as on plain HTTP in a LAN, a heartbeat in the browser's storage stands for one.
 * @param {string} name @param {(signal: AbortSignal) => Promise<void>} work
 * @returns {() => void} ends the work, or the wait for it */
export function lead(name, work) {
  const controller = new AbortController();
  const { signal } = controller;
  if (navigator.locks) navigator.locks.request(name, { signal }, () => work(signal)).catch(() => {});
  else leadByHeartbeat(name, work, signal);
  return () => controller.abort();
}

async function leadByHeartbeat(name, work, signal) {
  const own = Math.random().toString(36).slice(2);
  const key = `${name}.leader`;
  while (!signal.aborted && !take(key, own)) await pause(BEAT_MS, signal);
  if (signal.aborted) return;
  await pause(BEAT_MS / 4, signal); // two that took it at the same time: the last one has it
  if (read(key)?.own !== own) { leadByHeartbeat(name, work, signal); return; }
  const timer = setInterval(() => take(key, own), BEAT_MS);
  signal.addEventListener('abort', () => { clearInterval(timer); localStorage.removeItem(key); }, { once: true });
  addEventListener('pagehide', () => { if (read(key)?.own === own) localStorage.removeItem(key); }, { once: true });
  work(signal);
}

/** Whether the heartbeat is this tab's now. */
function take(key, own) {
  const found = read(key);
  if (found && found.own !== own && Date.now() - found.at < DEAD_MS) return false;
  try {
    localStorage.setItem(key, JSON.stringify({ own, at: Date.now() }));
  } catch {
    // storage is blocked: every tab works for itself
  }
  return true;
}

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key) ?? 'null');
  } catch {
    return null;
  }
}

function pause(ms, signal) {
  return new Promise((/** @type {(value?: any) => void} */ resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
