// What the engines of a model do: now, or at a moment of the last minutes.
import { html, useEffect, useState } from '../vendor/preact.js';
import { open } from '../state/chats.js';
import { usePolling } from '../state/polling.js';
import { health, look, models } from '../state/server.js';
import { getJson } from '../wire/api.js';
import { save } from '../text/files.js';
import { Explain } from './explain.js';
import { rates, trace } from './frames.js';
import { Pool, share, textOfNode } from './pool.js';
import { Moments, Sequences, Tiers } from './sequences.js';
import { Slots } from './slots.js';
import { Steps } from './steps.js';
import { failure, frames, now, watch } from './stream.js';

const HEALTH_EVERY_MS = 2000;
const DEMO_PROMPTS = 8;

export function Engine() {
  const [paused, setPaused] = useState(null);
  const model = open.value.model || models.value[0]?.id || '';
  useEffect(() => { setPaused(null); return model ? watch(model) : undefined; }, [model]);
  const state = paused ? paused.frames[paused.at] : now.value;
  const { engines } = state;
  const read = state.hello?.may_read ? (replica, id) => textOfNode(model, replica, id) : null;
  return html`<section class="engine" aria-label="Engine">
    <h2>Engine</h2>
    <${Health} />
    ${failure.value && html`<p class="error" role="alert">${failure.value.message}</p>`}
    ${failure.value?.isLasting && html`<${Slots} />`}
    ${engines.length > 0 && html`
      <${Time} paused=${paused} setPaused=${setPaused} state=${state} />
      <${Now} state=${state} />
      ${engines.map((engine) => html`<div key=${engine.replica} class="parts">
        <${Pool} engine=${engine} isOnly=${engines.length === 1} read=${read} />
        <${Steps} engine=${engine} t=${state.t} />
        <${Sequences} engine=${engine} />
        <div class="beside"><${Tiers} engine=${engine} /><${Moments} engine=${engine} /></div>
      </div>`)}
      <${Demo} model=${model} />`}
  </section>`;
}

/** While time stands still, the states that can be looked at stay the same ones. */
function Time({ paused, setPaused, state }) {
  const shown = paused?.frames ?? frames.value;
  const last = Math.max(0, shown.length - 1);
  const pause = (at) => { if (shown.length) setPaused({ frames: shown, at }); };
  const name = state.hello?.model ?? 'engine';
  return html`<div class="time" role="group" aria-label="Time">
    <button type="button" aria-pressed=${paused !== null} onClick=${() => (paused ? setPaused(null) : pause(last))}>${paused ? 'Go on' : 'Pause'}</button>
    <input type="range" aria-label="Moment of the last minutes" min="0" max=${last} value=${paused?.at ?? last} onInput=${(event) => pause(Number(event.currentTarget.value))} />
    <output>${new Date(state.t * 1000).toLocaleTimeString()}${paused ? '' : ' (live)'}</output>
    <button type="button" class="quiet" onClick=${() => save(`${name}.json`, JSON.stringify(state, null, 1))}>Save JSON</button>
    <button type="button" class="quiet" onClick=${() => save(`${name}.trace.json`, JSON.stringify(trace(state)))}>Save trace</button>
  </div>`;
}

function Now({ state }) {
  const sum = (name) => state.engines.reduce((total, engine) => total + engine.totals[name], 0);
  const kv = (name) => state.engines.reduce((total, engine) => total + engine.kv[name], 0);
  const { written, prompt } = rates(state.engines, state.t);
  const figures = [
    ['running', sum('running')], ['waiting', sum('waiting')], ['paused', sum('paused')],
    ['tokens/s written', written.toFixed(1)], ['tokens/s of prompts', prompt.toFixed(0)], ['pool', share(kv('held') + kv('promised'), kv('capacity'))],
  ];
  return html`<div class="now"><dl>${figures.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><${Explain} of="now" /></div>`;
}

function Health() {
  usePolling(look, HEALTH_EVERY_MS);
  if (!health.value) return null;
  return html`<table><caption>Models: ${health.value.status}</caption>
    <thead><tr><th scope="col">Model</th><th scope="col">State</th><th scope="col">Restarts</th></tr></thead>
    <tbody>${(health.value.models ?? []).map((model) => html`<tr key=${model.id}><th scope="row">${model.id}</th><td>${model.state}</td><td>${model.num_restarts}</td></tr>`)}</tbody></table>`;
}

/** Sends prompts that begin alike: the pool shows one block that all of them share. */
function Demo({ model }) {
  const [words, setWords] = useState('');
  const [isBusy, setBusy] = useState(false);
  const run = async () => {
    setBusy(true);
    setWords(`${DEMO_PROMPTS} prompts with one beginning are on their way …`);
    const beginning = 'You help people to understand how a server of language models works. Answer in two sentences. '.repeat(4);
    const ask = (number) => getJson('v1/completions', { body: { model, prompt: `${beginning}Question ${number}: what is number ${number}?`, max_tokens: 48 } });
    const replies = await Promise.allSettled(Array.from({ length: DEMO_PROMPTS }, (_, number) => ask(number)));
    const usages = replies.filter(({ status }) => status === 'fulfilled').map(({ value }) => value.usage);
    const total = usages.reduce((sum, usage) => sum + usage.prompt_tokens, 0);
    const cached = usages.reduce((sum, usage) => sum + (usage.prompt_tokens_details?.cached_tokens ?? 0), 0);
    setWords(`${usages.length} answers. Of ${total.toLocaleString()} prompt tokens ${cached.toLocaleString()} came from the cache.`);
    setBusy(false);
  };
  return html`<section aria-label="Demonstration"><h3>Try it</h3><button type="button" disabled=${isBusy} onClick=${run}>Send ${DEMO_PROMPTS} prompts with one beginning</button>
    <p role="status">${words}</p></section>`;
}
