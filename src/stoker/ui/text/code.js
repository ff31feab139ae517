// A block of code: copied, wrapped, saved, and colored once it is complete.
import { html, useEffect, useState } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { CopyButton } from './copy_button.js';
import { save } from './files.js';
import { openWorker } from './worker.js';

const LONGEST = 100_000;
const PATIENCE_MS = 5000;
const EXTENSIONS = { python: 'py', javascript: 'js', typescript: 'ts', bash: 'sh', rust: 'rs', ruby: 'rb', markdown: 'md', csharp: 'cs', kotlin: 'kt' };

const waiting = new Map();
let worker = null;
let lastId = 0;

export function Code({ block }) {
  const [parts, setParts] = useState(null);
  const [wraps, setWraps] = useState(false);
  const language = (block.lang ?? '').split(/[\s{:,]/)[0].toLowerCase();
  const isClosed = /\n\s*(```+|~~~+)\s*$/.test(block.raw);
  useEffect(() => {
    if (!language || !isClosed || block.text.length > LONGEST) return undefined;
    let isGone = false;
    colored(block.text, language).then((found) => { if (!isGone) setParts(found); });
    return () => { isGone = true; };
  }, [block.text, language, isClosed]);
  return html`<figure class="code">
    <figcaption><span>${block.lang ?? ''}</span>
      <button type="button" class="quiet" aria-pressed=${wraps} onClick=${() => setWraps(!wraps)}>${t('wrap')}</button>
      <button type="button" class="quiet" aria-label=${t('saveCode')} onClick=${() => save(`code.${EXTENSIONS[language] ?? (/^\w+$/.test(language) ? language : 'txt')}`, block.text, 'text/plain')}>${t('save')}</button>
      <${CopyButton} text=${block.text} label=${t('copyCode')} /></figcaption>
    <pre tabindex="0" class=${wraps ? 'wraps' : undefined}><code>${parts ? parts.map(([name, text]) => (name ? html`<span class=${name}>${text}</span>` : text)) : block.text}</code></pre>
  </figure>`;
}

/** `[class, text]` pairs of a code; null where the language is not known, or the worker does not answer. */
function colored(code, language) {
  worker ??= started();
  lastId += 1;
  const id = lastId;
  return new Promise((resolve) => {
    waiting.set(id, resolve);
    setTimeout(() => { if (waiting.has(id)) replace(); }, PATIENCE_MS);
    worker.postMessage({ id, code, language });
  });
}

function started() {
  const made = openWorker('text/highlight_worker.js');
  made.addEventListener('message', ({ data: { id, parts } }) => settle(id, parts));
  made.addEventListener('error', replace);
  return made;
}

function settle(id, parts) {
  waiting.get(id)?.(parts);
  waiting.delete(id);
}

/** A worker that fails, or colors one block for longer than is sensible, is ended; its blocks stay as they are. */
function replace() {
  worker?.terminate();
  worker = null;
  for (const id of [...waiting.keys()]) settle(id, null);
}
