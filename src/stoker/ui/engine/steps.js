// The last steps of an engine as bars, with moments between them; the newest of them also as a table.
import { html, useState } from '../vendor/preact.js';
import { clock, decimal, number, t } from '../locale/index.js';
import { chosenStep } from '../inspect/state.js';
import { Explain } from './explain.js';

const SHOWN_S = 20;
const WIDTH = 1000;
const HEIGHT = 120;
const NUM_ROWS = 20;
const MARKED = new Set(['arrived', 'first', 'finished', 'ended', 'evicted', 'preempted', 'paused', 'loaded', 'unloaded', 'crashed', 'restarted']);
const KINDS = ['decode', 'prompt', 'kept', 'thrown', 'sample', 'plan'];

/** @param props.news of models: they are drawn beside the moments of requests */
export function Steps({ engine, news, t: until }) {
  const [words, setWords] = useState('');
  const steps = engine.steps.filter(([, at]) => at > until - SHOWN_S);
  const moments = [...engine.moments, ...news].filter(({ t: at, kind }) => at > until - SHOWN_S && at <= until && MARKED.has(kind));
  const slowest = Math.max(1, ...steps.map(([, , ms]) => ms));
  const x = (at) => WIDTH * (1 - (until - at) / SHOWN_S);
  const mean = steps.length ? steps.reduce((sum, [, , ms]) => sum + ms, 0) / steps.length : 0;
  const names = new Map(engine.seq.filter(({ slot }) => slot !== null).map(({ slot, id }) => [slot, id]));
  return html`<section class="card" aria-label=${t('steps')}>
    <h3>${t('steps')} <small>${t('stepsSaid', SHOWN_S, steps.length, decimal(mean), decimal(slowest))}</small><${Explain} of="steps" /></h3>
    <svg class="steps" role="img" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-label=${t('stepsWords', steps.length, SHOWN_S, decimal(slowest))} onPointerLeave=${() => setWords('')}>
      ${steps.map((step) => html`<${Bar} key=${step[0]} step=${step} x=${x(step[1])} scale=${HEIGHT / slowest} say=${() => setWords(wordsOf(step, names))} />`)}
      ${moments.map(({ t: at, kind, n }, index) => html`<line key=${index} class=${`moment ${kind}`} x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT}><title>${t(`kind_${kind}`)} ${n || ''}</title></line>`)}
    </svg>
    <p class="axis" aria-hidden="true"><span>−${SHOWN_S} s</span><span>${t('now')}</span></p>
    <p class="legend">${KINDS.map((kind) => html`<span key=${kind}><span class=${`key ${kind}`}></span>${t(`step_${kind}`)} </span>`)}</p>
    <p class="hint">${words || t('stepsHint')}</p>
    <details><summary>${t('asTable')}</summary><div class="wide-table"><${Table} steps=${engine.steps.slice(-NUM_ROWS).reverse()} /></div></details>
  </section>`;
}

function kindOf([, , , , , decodes, prompt, drafted, kept]) {
  if (drafted) return kept * 2 >= drafted ? 'kept' : 'thrown';
  return prompt > decodes ? 'prompt' : 'decode';
}

/** Bottom to top: the forward pass, sampling, and the plan that was made before. */
function Bar({ step, x, scale, say }) {
  const [, , ms, forward, sample, , , , , , , plan, id] = step;
  const width = Math.max(2, (ms / (SHOWN_S * 1000)) * WIDTH);
  /** @type {[string, number][]} */
  const parts = [[kindOf(step), Math.max(2, forward * scale)], ['sample', sample * scale], ['plan', plan * scale]];
  let top = HEIGHT;
  return html`<g class=${chosenStep.value === id ? 'bar chosen' : 'bar'} onPointerEnter=${say}>
    <rect class="whole" x=${x - width} y="0" width=${width} height=${HEIGHT} />
    ${parts.map(([name, height]) => { top -= height; return html`<rect key=${name} class=${name} x=${x - width} y=${top} width=${width} height=${height} />`; })}</g>`;
}

function wordsOf([, , ms, forward, sample, decodes, prompt, drafted, kept, restored, members, plan, id], names) {
  const who = members.map(([slot, tokens]) => t('memberOf', slot, names.get(slot), tokens)).join(', ');
  return t('stepWords', { id, ms, forward, sample, plan, decodes, prompt, drafted, kept, restored, who });
}

function Table({ steps }) {
  return html`<table><caption class="hidden">${t('stepsTable')}</caption>
    <thead><tr>${['step', 'time', 'ms', 'step_forward', 'step_sample', 'step_plan', 'step_decode', 'step_prompt', 'step_kept', 'requests'].map((key) => html`<th key=${key} scope="col">${t(key)}</th>`)}</tr></thead>
    <tbody>${steps.map(([serial, at, ms, forward, sample, decodes, prompt, drafted, kept, , members, plan, id]) => html`<tr key=${serial}><th scope="row">${id}</th><td>${clock(at)}</td>
      <td>${decimal(ms)}</td><td>${decimal(forward)}</td><td>${decimal(sample)}</td><td>${decimal(plan)}</td><td>${decodes}</td><td>${number(prompt)}</td><td>${drafted ? `${kept} / ${drafted}` : '–'}</td><td>${members.length}</td></tr>`)}</tbody></table>`;
}
