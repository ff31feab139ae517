// A button that copies a text, and says for a moment that it has.
import { html, useState } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { copy } from './clipboard.js';

const SHOWN_MS = 1500;

/** @param {{text: string | (() => string), label?: string}} props */
export function CopyButton({ text, label = t('copy') }) {
  const [isDone, setDone] = useState(false);
  const run = async () => {
    await copy(typeof text === 'function' ? text() : text);
    setDone(true);
    setTimeout(() => setDone(false), SHOWN_MS);
  };
  return html`<button type="button" class="quiet" aria-label=${label} onClick=${run}>${isDone ? t('copied') : label}</button>`;
}
