// The slots of a model whose engine cannot be watched, such as llama-server: polled once a second.
import { html, useState } from '../vendor/preact.js';
import { usePolling } from '../state/polling.js';
import { getJson } from '../wire/api.js';

const EVERY_MS = 1000;

export function Slots() {
  const [slots, setSlots] = useState([]);
  usePolling(async (isOver) => {
    const found = await getJson('slots').catch(() => null);
    if (Array.isArray(found) && !isOver()) setSlots(found);
  }, EVERY_MS);
  const shown = slots.filter((slot) => slot.is_processing || slot.n_tokens > 0);
  return html`<table><caption>Sequences: ${shown.length} of ${slots.length} slots hold tokens</caption>
    <thead><tr><th scope="col">Slot</th><th scope="col">State</th><th scope="col">Tokens</th><th scope="col">Written</th></tr></thead>
    <tbody>${shown.map((slot) => html`<tr key=${`${slot.replica ?? ''}.${slot.id}`}><th scope="row">${slot.id}</th>
      <td>${slot.is_processing ? 'running' : 'retained'}</td><td>${slot.n_tokens}</td><td>${slot.n_decoded}</td></tr>`)}</tbody></table>`;
}
