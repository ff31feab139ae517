// The requests that are alive, what is behind the pool, and what happened last.
import { html } from '../vendor/preact.js';
import { owner } from '../state/traces.js';
import { Explain } from './explain.js';

const ORDER = ['decode', 'prompt', 'restoring', 'queued', 'paused'];
const SHOWN_MOMENTS = 12;

export function Sequences({ engine }) {
  const rows = [...engine.seq].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (a.slot ?? 0) - (b.slot ?? 0));
  return html`<section class="sequences" aria-label="Sequences"><h3>Sequences <small>${rows.length ? `${rows.length} alive` : 'no requests'}</small><${Explain} of="sequences" /></h3>
    ${rows.length > 0 && html`<div class="wide-table"><table><caption class="hidden">Requests that are alive</caption>
      <thead><tr><th scope="col">Request</th><th scope="col">State</th><th scope="col">Slot</th><th scope="col">Prompt</th><th scope="col">Cached</th>
        <th scope="col">Written</th><th scope="col">Drafts kept</th><th scope="col">Preempted</th></tr></thead>
      <tbody>${rows.map((row) => html`<${Row} key=${row.id} row=${row} />`)}</tbody></table></div>`}
  </section>`;
}

function Row({ row }) {
  const mine = owner(row.id);
  const done = Math.min(row.computed, row.prompt);
  return html`<tr class=${mine ? 'mine' : ''}>
    <th scope="row" class="id">${mine ? html`<a href="#" onClick=${mine.show}>${mine.title}</a>` : row.own ? row.id : 'another client'}${row.key && ` (${row.key})`}</th>
    <td><span class=${`state ${row.state}`}>${row.state}</span></td><td>${row.slot ?? '–'}</td>
    <td>${done.toLocaleString()} / ${row.prompt.toLocaleString()} ${row.state === 'prompt' && html`<meter aria-label="Prompt computed" max=${row.prompt} value=${done} />`}</td>
    <td>${cached(row)}</td><td>${row.written.toLocaleString()}</td><td>${row.drafted ? `${row.kept} / ${row.drafted}` : '–'}</td><td>${row.preempted || '–'}</td></tr>`;
}

function cached({ cached: [pool, tiers] }) {
  const parts = [pool && `${pool.toLocaleString()} pool`, tiers && `${tiers.toLocaleString()} memory or disk`].filter(Boolean);
  return parts.join(', ') || '–';
}

export function Tiers({ engine: { tiers, totals } }) {
  const hit = totals.prompt ? (100 * totals.cached) / totals.prompt : 0;
  const rows = [
    ['Prompt tokens from the cache', `${totals.cached.toLocaleString()} of ${totals.prompt.toLocaleString()} (${hit.toFixed(0)} %)`],
    ['Found in the pool', totals.pool_hits.toLocaleString()],
    ['Restored from memory', tiers.ram_hits.toLocaleString()],
    ['Restored from disk', tiers.disk_hits.toLocaleString()],
    ['In memory', `${bytes(tiers.ram_bytes)} of ${bytes(tiers.ram_limit_bytes)}`],
    ['On disk', tiers.disk_limit_bytes ? `${bytes(tiers.disk_bytes)} of ${bytes(tiers.disk_limit_bytes)}` : 'off'],
    ['Evicted from the pool', `${totals.evicted.toLocaleString()} tokens`],
    ['Preemptions', totals.preempted.toLocaleString()],
    ['Drafts kept', totals.drafted ? `${totals.kept.toLocaleString()} of ${totals.drafted.toLocaleString()} tokens` : 'none drafted'],
  ];
  return html`<section aria-label="Cache"><h3>Cache and drafts <small>since the start</small><${Explain} of="tiers" /></h3>
    <table><caption class="hidden">Cache and drafts</caption><tbody>${rows.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td>${value}</td></tr>`)}</tbody></table></section>`;
}

export function Moments({ engine }) {
  const shown = engine.moments.slice(-SHOWN_MOMENTS).reverse();
  return html`<section aria-label="Moments"><h3>Moments<${Explain} of="moments" /></h3>
    ${shown.length === 0 ? html`<p class="empty-part">Nothing has happened since the page looks.</p>`
      : html`<ul class="moments">${shown.map(({ serial, t, kind, id, n }) => html`<li key=${serial}><time>${new Date(t * 1000).toLocaleTimeString()}</time>
        <strong>${kind}</strong> ${n ? `${n.toLocaleString()} ${kind === 'preempted' ? 'requests' : 'tokens'}` : ''} <span class="id">${owner(id)?.title ?? id}</span></li>`)}</ul>`}
  </section>`;
}

const bytes = (number) => (number >= 1e9 ? `${(number / 1e9).toFixed(1)} GB` : `${(number / 1e6).toFixed(0)} MB`);
