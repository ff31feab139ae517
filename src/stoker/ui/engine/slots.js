// The slots of a model whose engine cannot be watched, such as llama-server: polled once a second.
import { html, useEffect, useState } from '../vendor/preact.js';
import { send } from '../wire/api.js';

const EVERY_MS = 1000;

export function Slots() {
  const [slots, setSlots] = useState([]);
  useEffect(() => {
    let timer = 0;
    let isOver = false;
    const round = async () => {
      const found = document.hidden ? null : await send('slots').then((reply) => (reply.ok ? reply.json() : null)).catch(() => null);
      if (Array.isArray(found)) setSlots(found);
      if (!isOver) timer = setTimeout(round, EVERY_MS);
    };
    round();
    return () => { isOver = true; clearTimeout(timer); };
  }, []);
  const shown = slots.filter((slot) => slot.is_processing || slot.n_tokens > 0);
  return html`<table><caption>Sequences: ${shown.length} of ${slots.length} slots hold tokens</caption>
    <thead><tr><th scope="col">Slot</th><th scope="col">State</th><th scope="col">Tokens</th><th scope="col">Written</th></tr></thead>
    <tbody>${shown.map((slot) => html`<tr key=${`${slot.replica ?? ''}.${slot.id}`}><th scope="row">${slot.id}</th>
      <td>${slot.is_processing ? 'running' : 'retained'}</td><td>${slot.n_tokens}</td><td>${slot.n_decoded}</td></tr>`)}</tbody></table>`;
}
