// The requests that are alive, what is behind the pool, and what happened last.
import { html } from '../vendor/preact.js';
import { bytes, clock, decimal, number, share, t } from '../locale/index.js';
import { owner } from '../state/traces.js';
import { Explain } from './explain.js';

const ORDER = ['decode', 'prompt', 'restoring', 'queued', 'paused'];
const COLUMNS = ['request', 'state', 'slot', 'age', 'promptColumn', 'cachedColumn', 'written', 'draftsKeptColumn', 'preempted'];
const SHOWN_MOMENTS = 12;

export function Sequences({ engine, t: until }) {
  const rows = [...engine.seq].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.since - b.since);
  const waiting = rows.filter(({ state }) => state === 'queued' || state === 'restoring').map(({ id }) => id);
  return html`<section class="card sequences" aria-label=${t('sequences')}><h3>${t('sequences')} <small>${t('numAlive', rows.length)}</small><${Explain} of="sequences" /></h3>
    ${rows.length === 0 ? html`<p class="empty-part">${t('noneAlive')}</p>` : html`<div class="wide-table"><table><caption class="hidden">${t('sequencesTable')}</caption>
      <thead><tr>${COLUMNS.map((key) => html`<th key=${key} scope="col">${t(key)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<${Row} key=${row.id} row=${row} place=${waiting.indexOf(row.id) + 1} age=${Math.max(0, until - row.since)} />`)}</tbody></table></div>`}
  </section>`;
}

function Row({ row, place, age }) {
  const mine = owner(row.id);
  const done = Math.min(row.computed, row.prompt);
  return html`<tr class=${mine ? 'mine' : ''}>
    <th scope="row" class="id" title=${row.id}>${mine ? html`<a href="#" onClick=${mine.show}>${mine.title}</a>` : row.own ? short(row.id) : t('anotherClient')}${row.key && ` (${row.key})`}${row.adapters > 0 && html` <small>${t('numAdapters', row.adapters)}</small>`}</th>
    <td><span class=${`state ${row.state}`}>${t(`seq_${row.state}`)}</span>${place > 0 && html` <small>${t('nth', place)}</small>`}</td><td>${row.slot ?? '–'}</td><td>${t('seconds', decimal(age))}</td>
    <td class="part">${number(done)} / ${number(row.prompt)} ${row.state === 'prompt' && html`<meter aria-label=${t('promptComputed')} max=${row.prompt} value=${done} />`}</td>
    <td>${cached(row)}</td><td>${number(row.written)}</td><td>${row.drafted ? `${row.kept} / ${row.drafted}` : '–'}</td><td>${row.preempted || '–'}</td></tr>`;
}

/** Where the cached part of a prompt was; of one that waits, what will come from disk. */
function cached({ cached: [pool, memory, disk], from_disk: fromDisk, state }) {
  const parts = [pool && t('fromPool', pool), memory && t('fromMemory', memory), disk && t('fromDisk', disk)];
  if (!disk && fromDisk && (state === 'queued' || state === 'restoring')) parts.push(t('willComeFromDisk', fromDisk));
  return parts.filter(Boolean).join(', ') || '–';
}

/** Enough of an id to tell two requests apart. */
const short = (id) => (id.length > 22 ? `${id.slice(0, 18)}…` : id);

export function Tiers({ engine: { tiers, totals } }) {
  const rows = [
    ['promptsCached', t('cachedShare', totals.cached, totals.prompt, share(totals.cached, totals.prompt))],
    ['foundInPool', number(totals.pool_hits)],
    ['restoredMemory', number(tiers.ram_hits)],
    ['restoredDisk', number(tiers.disk_hits)],
    ['inMemory', t('partOf', bytes(tiers.ram_bytes), bytes(tiers.ram_limit_bytes))],
    ['onDisk', tiers.disk_limit_bytes ? t('partOf', bytes(tiers.disk_bytes), bytes(tiers.disk_limit_bytes)) : t('off')],
    ['evictedFromPool', t('numTokens', totals.evicted)],
    ['preemptions', number(totals.preempted)],
    ['draftsKeptTotal', totals.drafted ? t('partOf', number(totals.kept), t('numTokens', totals.drafted)) : t('noneDrafted')],
  ];
  return html`<section class="card" aria-label=${t('cache')}><h3>${t('cacheAndDrafts')} <small>${t('sinceStart')}</small><${Explain} of="tiers" /></h3>
    <table><caption class="hidden">${t('cacheAndDrafts')}</caption><tbody>${rows.map(([key, value]) => html`<tr key=${key}><th scope="row">${t(key)}</th><td>${value}</td></tr>`)}</tbody></table></section>`;
}

/** @param props.news of models: they are not an engine's, and survive it */
export function Moments({ engine, news }) {
  const all = [...engine.moments, ...news.map((each, at) => ({ ...each, serial: `news-${at}`, n: 0 }))].sort((a, b) => a.t - b.t);
  const shown = all.slice(-SHOWN_MOMENTS).reverse();
  return html`<section class="card" aria-label=${t('moments')}><h3>${t('moments')}<${Explain} of="moments" /></h3>
    ${shown.length === 0 ? html`<p class="empty-part">${t('nothingHappened')}</p>`
      : html`<ul class="moments">${shown.map(({ serial, t: at, kind, id, n, part, why }) => html`<li key=${serial} class=${kind}><time>${clock(at)}</time>
        <strong>${t(`kind_${kind}`)}</strong> <span>${t('momentCount', kind, n, part)}</span> <span class="id" title=${id}>${owner(id)?.title ?? short(id)}</span> ${why && html`<small>${why}</small>`}</li>`)}</ul>`}
  </section>`;
}
