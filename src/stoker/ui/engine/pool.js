// The KV pool as an icicle of shared prefixes, and as a table for those who do not see it.
import { html, useState } from '../vendor/preact.js';
import { getJson } from '../wire/api.js';
import { Explain } from './explain.js';
import { icicle } from './frames.js';

const WIDTH = 1000;
const ROW = 26;
const MIN_LABEL = 60;

/** @param props.read gives the text of a node, or null where the client may not read it */
export function Pool({ engine, isOnly, read }) {
  const [text, setText] = useState('');
  const show = read && ((id) => read(engine.replica, id).then(setText));
  const { kv, tree } = engine;
  const shown = Math.min(kv.capacity, Math.max(64, Math.ceil((kv.held + kv.promised) * 1.2)));
  const scale = WIDTH / Math.max(1, shown);
  const placed = icicle(tree);
  const rows = 1 + Math.max(0, ...placed.map(({ depth }) => depth));
  const used = kv.held + kv.promised;
  const title = `KV pool${isOnly ? '' : ` of replica ${engine.replica}`}`;
  const words = `${title}: ${kv.held.toLocaleString()} of ${kv.capacity.toLocaleString()} tokens held, ${kv.retained.toLocaleString()} of them by finished conversations`;
  return html`<section aria-label=${title}>
    <h3>${title} <small>${share(used, kv.capacity)} of ${kv.capacity.toLocaleString()} tokens${shown < kv.capacity ? `, drawn up to ${shown.toLocaleString()}` : ''}</small><${Explain} of="pool" /></h3>
    <svg class="icicle" role="img" aria-label=${words} viewBox=${`0 0 ${WIDTH} ${ROW * rows + 8}`} preserveAspectRatio="none" data-held=${kv.held}>
      <rect class="free" x="0" y="0" width=${WIDTH} height=${ROW * rows} />
      <rect class="promised" x=${kv.held * scale} y="0" width=${kv.promised * scale} height=${ROW * rows} />
      ${placed.map((spot) => html`<${Block} key=${spot.node.id} spot=${spot} scale=${scale} show=${show} />`)}
    </svg>
    <p class="legend"><span class="key running"></span> running <span class="key retained"></span> finished, may leave
      <span class="key promised"></span> promised to this step <span class="key free"></span> free</p>
    ${text && html`<p class="prefix-text" role="status" dir="auto">${text}</p>`}
    <details><summary>As a table</summary><${Table} tree=${tree} show=${show} /></details>
  </section>`;
}

function Block({ spot: { node, x, own, span, depth }, scale, show }) {
  const hue = (node.slots[0] ?? node.id * 7) * 47 % 360;
  const words = `${node.n.toLocaleString()} tokens${node.num_slots > 1 ? `, shared by ${node.num_slots}` : ''}, ${node.running ? 'running' : 'finished'}${node.slots.length ? `, slot ${node.slots.join(', ')}` : ''}`;
  return html`<g class=${node.running ? 'running' : 'retained'} data-n=${node.n} data-width=${own} onClick=${show && node.id > 0 ? () => show(node.id) : undefined}>
    <title>${node.id > 0 ? words : `${words} (small parts added up)`}</title>
    ${span > own && html`<rect class="span" x=${x * scale} y=${depth * ROW} width=${span * scale} height=${ROW - 2} />`}
    <rect class="own" x=${x * scale} y=${depth * ROW} width=${own * scale} height=${ROW - 2} fill=${`hsl(${hue} 60% 50%)`} />
    ${own * scale > MIN_LABEL && html`<text x=${x * scale + 6} y=${depth * ROW + 16}>${node.n.toLocaleString()}${node.num_slots > 1 ? ` ×${node.num_slots}` : ''}</text>`}
  </g>`;
}

function Table({ tree, show }) {
  return html`<table><caption class="hidden">Nodes of the prefix tree</caption>
    <thead><tr><th scope="col">Node</th><th scope="col">Below</th><th scope="col">Tokens</th><th scope="col">Shared by</th><th scope="col">Slots</th><th scope="col">State</th></tr></thead>
    <tbody>${tree.map((node) => html`<tr key=${node.id}><th scope="row">${node.id <= 0 ? 'small parts' : show ? html`<button type="button" class="quiet" aria-label=${`Read node ${node.id}`} onClick=${() => show(node.id)}>${node.id}</button>` : node.id}</th><td>${node.parent || '–'}</td>
      <td>${node.n.toLocaleString()}</td><td>${node.num_slots}</td><td>${node.slots.join(' ')}</td><td>${node.running ? 'running' : 'finished'}</td></tr>`)}</tbody></table>`;
}

/** The first tokens of a node of the prefix tree, or in words why they cannot be read. */
export async function textOfNode(model, replica, id) {
  try {
    const { begin, n, n_read: numRead, text } = await getJson(`engine/prefix/${id}?model=${encodeURIComponent(model)}&replica=${replica}`);
    return `Tokens ${begin + 1} to ${begin + n}${numRead < n ? `, the first ${numRead} of them` : ''}: ${text}`;
  } catch (error) {
    return error.message;
  }
}

export const share = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0} %`;
