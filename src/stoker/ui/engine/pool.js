// The KV pool as an icicle of shared prefixes, and as a table for those who do not see it.
import { html, useState } from '../vendor/preact.js';
import { bytes, number, share, t } from '../locale/index.js';
import { getJson } from '../wire/api.js';
import { Explain } from './explain.js';
import { icicle } from './frames.js';

const WIDTH = 1000;
const ROW = 26;
const MIN_LABEL = 45;
const percent = (part) => `${100 * part}%`;

/** @param props.read gives the text of a node, or null where the client may not read it */
export function Pool({ engine, isOnly, read }) {
  const [text, setText] = useState('');
  const show = read && ((id) => read(engine.replica, id).then(setText));
  const { kv, tree } = engine;
  const shown = Math.min(kv.capacity, Math.max(64, Math.ceil((kv.held + kv.promised) * 1.2)));
  const scale = WIDTH / Math.max(1, shown);
  const placed = icicle(tree);
  const rows = Math.max(2, 1 + Math.max(0, ...placed.map(({ depth }) => depth)));
  const places = new Map(kv.leaving.map((slot, at) => [slot, at + 1]));
  const title = t(isOnly ? 'pool' : 'poolOf', engine.replica);
  return html`<section class="card" aria-label=${title}>
    <h3>${title} <small>${t('poolUse', share(kv.held + kv.promised, kv.capacity), kv.capacity, shown < kv.capacity ? shown : 0)}</small><${Explain} of="pool" /></h3>
    <div class="drawn"><svg class="icicle" role="img" aria-label=${t('poolWords', title, kv.held, kv.capacity, kv.retained)} viewBox=${`0 0 ${WIDTH} ${ROW * rows}`} preserveAspectRatio="none" data-rows=${Math.min(rows, 8)} data-held=${kv.held}>
      <defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="4" height="8" class="promised" /></pattern></defs>
      <rect class="free" x="0" y="0" width=${WIDTH} height=${ROW * rows} />
      <rect fill="url(#hatch)" x=${kv.held * scale} y="0" width=${kv.promised * scale} height=${ROW * rows} />
      ${placed.map((spot) => html`<${Block} key=${spot.node.id} spot=${spot} scale=${scale} show=${show} places=${places} />`)}
    </svg>
      ${placed.filter(({ own }) => own * scale > MIN_LABEL).map(({ node, x, depth }) => html`<span key=${node.id} class="label" aria-hidden="true" style=${{ left: percent(x * scale / WIDTH), top: percent(depth / rows), height: percent(1 / rows) }}>${number(node.n)}${node.num_slots > 1 ? ` ×${node.num_slots}` : ''}</span>`)}</div>
    <${Behind} tiers=${engine.tiers} />
    <p class="legend"><span class="key running"></span>${t('keyRunning')} <span class="key retained"></span>${t('keyRetained')}
      <span class="key promised"></span>${t('keyPromised')} <span class="key free"></span>${t('keyFree')}</p>
    ${show && tree.length > 0 && html`<p class="hint">${t('poolHint')}</p>`}
    ${text && html`<p class="prefix-text" role="status" dir="auto">${text}</p>`}
    <details><summary>${t('asTable')}</summary><div class="wide-table"><${Table} tree=${tree} show=${show} places=${places} /></div></details>
  </section>`;
}

/** What has left the pool, or would survive it: thin bars for memory and disk. */
function Behind({ tiers }) {
  const bars = [['inMemory', tiers.ram_bytes, tiers.ram_limit_bytes], ['onDisk', tiers.disk_bytes, tiers.disk_limit_bytes]].filter(([, , limit]) => limit > 0);
  return html`<div class="behind">${bars.map(([key, used, limit]) => html`<label key=${key}>${t(key)} <small>${t('partOf', bytes(used), bytes(limit))}</small><meter max=${limit} value=${used} /></label>`)}</div>`;
}

function Block({ spot: { node, x, own, span, depth }, scale, show, places }) {
  const hue = (node.slots[0] ?? node.id * 7) * 47 % 360;
  const leaves = Math.min(...node.slots.map((slot) => places.get(slot) ?? Infinity));
  const words = t('nodeWords', node, leaves);
  return html`<g class=${`${node.running ? 'running' : 'retained'}${show && node.id > 0 ? ' readable' : ''}`} data-n=${node.n} data-width=${own} onClick=${show && node.id > 0 ? () => show(node.id) : undefined}>
    <title>${words}</title>
    ${span > own && html`<rect class="span" x=${x * scale} y=${depth * ROW} width=${span * scale} height=${ROW - 2} />`}
    <rect class="own" x=${x * scale} y=${depth * ROW} width=${Math.max(1, own * scale - 1)} height=${ROW - 2} style=${{ '--hue': hue }} /></g>`;
}

function Table({ tree, show, places }) {
  return html`<table><caption class="hidden">${t('poolTable')}</caption>
    <thead><tr>${['node', 'below', 'tokensColumn', 'sharedBy', 'slots', 'state', 'leaves'].map((key) => html`<th key=${key} scope="col">${t(key)}</th>`)}</tr></thead>
    <tbody>${tree.map((node) => html`<tr key=${node.id}><th scope="row">${node.id <= 0 ? t('smallParts') : show ? html`<button type="button" class="quiet" aria-label=${t('readNode', node.id)} onClick=${() => show(node.id)}>${node.id}</button>` : node.id}</th><td>${node.parent || '–'}</td>
      <td>${number(node.n)}</td><td>${node.num_slots}</td><td>${node.slots.join(' ')}</td><td>${t(node.running ? 'keyRunning' : 'finished')}</td>
      <td>${node.slots.filter((slot) => places.has(slot)).map((slot) => t('nth', places.get(slot))).join(' ') || '–'}</td></tr>`)}</tbody></table>`;
}

/** The first tokens of a node of the prefix tree, or in words why they cannot be read. */
export async function textOfNode(model, replica, id) {
  try {
    const { begin, n, n_read: numRead, text } = await getJson(`engine/prefix/${id}?model=${encodeURIComponent(model)}&replica=${replica}`);
    return t('nodeText', begin + 1, begin + n, numRead < n ? numRead : 0, text);
  } catch (error) {
    return error.message;
  }
}
