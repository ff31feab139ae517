// The last steps of an engine as bars, with moments between them.
import { html } from '../vendor/preact.js';
import { Explain } from './explain.js';

const SHOWN_S = 20;
const WIDTH = 1000;
const HEIGHT = 120;
const MARKED = new Set(['evicted', 'preempted', 'paused', 'finished', 'ended']);

export function Steps({ engine, t }) {
  const steps = engine.steps.filter(([, at]) => at > t - SHOWN_S);
  const moments = engine.moments.filter(({ t: at, kind }) => at > t - SHOWN_S && MARKED.has(kind));
  const slowest = Math.max(1, ...steps.map(([, , ms]) => ms));
  const x = (at) => WIDTH * (1 - (t - at) / SHOWN_S);
  const mean = steps.length ? steps.reduce((sum, [, , ms]) => sum + ms, 0) / steps.length : 0;
  return html`<section aria-label="Steps">
    <h3>Steps <small>last ${SHOWN_S} s: ${steps.length}, ${mean.toFixed(1)} ms in the mean, ${slowest.toFixed(1)} ms at most</small><${Explain} of="steps" /></h3>
    <svg class="steps" role="img" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none"
      aria-label=${`${steps.length} steps in the last ${SHOWN_S} seconds, the slowest ${slowest.toFixed(1)} milliseconds`}>
      ${steps.map((step) => html`<${Bar} key=${step[0]} step=${step} x=${x(step[1])} scale=${HEIGHT / slowest} />`)}
      ${moments.map(({ serial, t: at, kind, n }) => html`<line key=${serial} class=${`moment ${kind}`} x1=${x(at)} x2=${x(at)} y1="0" y2=${HEIGHT}><title>${kind} ${n || ''}</title></line>`)}
    </svg>
    <p class="legend"><span class="key decode"></span> decode <span class="key prompt"></span> prompt <span class="key kept"></span> draft kept
      <span class="key thrown"></span> draft thrown away <span class="key sample"></span> sampling</p>
  </section>`;
}

function Bar({ step, x, scale }) {
  const [, , ms, forward, sample, decodes, prompt, drafted, kept, restored, members] = step;
  const width = Math.max(2, (ms / (SHOWN_S * 1000)) * WIDTH);
  const height = Math.max(2, forward * scale);
  const kind = drafted ? (kept * 2 >= drafted ? 'kept' : 'thrown') : prompt > decodes ? 'prompt' : 'decode';
  const who = members.map(([slot, tokens]) => `slot ${slot}: ${tokens}`).join(', ');
  const words = `${ms.toFixed(1)} ms (forward ${forward.toFixed(1)}, sampling ${sample.toFixed(1)}). ${decodes} decodes, ${prompt} prompt tokens${drafted ? `, ${kept} of ${drafted} drafted kept` : ''}${restored ? `, ${restored} restored` : ''}. ${who}`;
  return html`<g><title>${words}</title>
    <rect class=${kind} x=${x - width} y=${HEIGHT - height} width=${width} height=${height} />
    <rect class="sample" x=${x - width} y=${HEIGHT - height - sample * scale} width=${width} height=${sample * scale} /></g>`;
}
