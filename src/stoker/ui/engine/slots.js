// The slots of a model whose engine cannot be watched, such as llama-server: polled once a second.
import { html, useState } from '../vendor/preact.js';
import { number, t } from '../locale/index.js';
import { usePolling } from '../state/polling.js';
import { getJson } from '../wire/api.js';

const EVERY_MS = 1000;

export function Slots() {
  const [slots, setSlots] = useState(/** @type {any[]} */ ([]));
  usePolling(async (isOver) => {
    const found = await getJson('slots').catch(() => null);
    if (Array.isArray(found) && !isOver()) setSlots(found);
  }, EVERY_MS);
  const shown = slots.filter((slot) => slot.is_processing || slot.n_tokens > 0);
  return html`<table><caption>${t('slotsHold', shown.length, slots.length)}</caption>
    <thead><tr>${['slot', 'state', 'tokensColumn', 'written'].map((key) => html`<th key=${key} scope="col">${t(key)}</th>`)}</tr></thead>
    <tbody>${shown.map((slot) => html`<tr key=${`${slot.replica ?? ''}.${slot.id}`}><th scope="row">${slot.id}</th>
      <td>${t(slot.is_processing ? 'keyRunning' : 'finished')}</td><td>${number(slot.n_tokens)}</td><td>${number(slot.n_decoded)}</td></tr>`)}</tbody></table>`;
}
