// What the engines of a model do: now, or at a moment of the last minutes.
import { html, useEffect, useState } from '../vendor/preact.js';
import { bytes, clock, decimal, number, share, t } from '../locale/index.js';
import { open } from '../state/chats.js';
import { health, modelOf } from '../state/server.js';
import { isBeside, toggleBeside } from '../state/view.js';
import { save } from '../text/files.js';
import { Demos } from './demos.js';
import { Explain } from './explain.js';
import { rates, trace } from './frames.js';
import { Pool, textOfNode } from './pool.js';
import { Moments, Sequences, Tiers } from './sequences.js';
import { Slots } from './slots.js';
import { Steps } from './steps.js';
import { failure, frames, now, watch } from './stream.js';

export function Engine() {
  const [paused, setPaused] = useState(null);
  const model = modelOf(open.value);
  useEffect(() => { setPaused(null); return model ? watch(model) : undefined; }, [model]);
  const state = paused ? paused.frames[paused.at] : now.value;
  const { engines } = state;
  const read = state.hello?.may_read ? (replica, id) => textOfNode(model, replica, id) : null;
  return html`<section class="engine" aria-label=${t('engine')}>
    <h2>${t('engine')} <small>${model}</small></h2>
    <${Health} />
    ${failure.value && html`<p class="error" role="alert">${failure.value.message}</p>`}
    ${failure.value?.isLasting && html`<${Slots} />`}
    ${!failure.value && engines.length === 0 && html`<p class="waiting" role="status"><span class="pulse" aria-hidden="true"></span>${t('lookingAtEngine')}</p>`}
    ${engines.length > 0 && html`
      <${Time} paused=${paused} setPaused=${setPaused} state=${state} />
      <${Now} state=${state} />
      ${engines.map((engine) => html`<div key=${engine.replica} class="parts">
        <${Pool} engine=${engine} isOnly=${engines.length === 1} read=${read} />
        <${Steps} engine=${engine} news=${state.news} t=${state.t} />
        <${Sequences} engine=${engine} t=${state.t} />
        <div class="pair"><${Tiers} engine=${engine} /><${Moments} engine=${engine} news=${state.news} /></div>
      </div>`)}
      <${Demos} model=${model} />`}
  </section>`;
}

/** While time stands still, the states that can be looked at stay the same ones. */
function Time({ paused, setPaused, state }) {
  const shown = paused?.frames ?? frames.value;
  const last = Math.max(0, shown.length - 1);
  const pause = (at) => { if (shown.length) setPaused({ frames: shown, at }); };
  const name = state.hello?.model ?? 'engine';
  return html`<div class="time" role="group" aria-label=${t('timeGroup')}>
    <button type="button" aria-pressed=${paused !== null} onClick=${() => (paused ? setPaused(null) : pause(last))}>${paused ? t('goOnTime') : t('pause')}</button>
    <input type="range" aria-label=${t('momentOfLast')} min="0" max=${last} value=${paused?.at ?? last} onInput=${(event) => pause(Number(event.currentTarget.value))} />
    <output>${clock(state.t)}${paused ? '' : ` ${t('live')}`}</output>
    <button type="button" class="quiet besides" aria-pressed=${isBeside.value} onClick=${toggleBeside}>${t('besideChat')}</button>
    <button type="button" class="quiet" onClick=${() => save(`${name}.json`, JSON.stringify(state, null, 1))}>${t('saveJson')}</button>
    <button type="button" class="quiet" onClick=${() => save(`${name}.trace.json`, JSON.stringify(trace(state)))}>${t('saveTrace')}</button>
  </div>`;
}

function Now({ state }) {
  const sum = (part, name) => state.engines.reduce((total, engine) => total + engine[part][name], 0);
  const { written, prompt } = rates(state.engines, state.t);
  const figures = [
    ['running', number(sum('totals', 'running'))], ['waiting', number(sum('totals', 'waiting'))], ['pausedCount', number(sum('totals', 'paused'))],
    ['speedWritten', decimal(written)], ['speedPrompts', number(Math.round(prompt))],
    ['poolShare', share(sum('kv', 'held') + sum('kv', 'promised'), sum('kv', 'capacity'))],
    ['memory', bytes(sum('tiers', 'ram_bytes'))], ['disk', sum('tiers', 'disk_limit_bytes') ? bytes(sum('tiers', 'disk_bytes')) : t('off')],
  ];
  return html`<div class="now"><dl>${figures.map(([key, value]) => html`<div key=${key}><dt>${t(key)}</dt><dd>${value}</dd></div>`)}</dl><${Explain} of="now" /></div>`;
}

function Health() {
  const models = health.value?.models ?? [];
  if (!models.length) return null;
  return html`<table class="health"><caption class="hidden">${t('healthTable')}</caption>
    <thead class="hidden"><tr><th scope="col">${t('model')}</th><th scope="col">${t('state')}</th><th scope="col">${t('restarts')}</th></tr></thead>
    <tbody>${models.map(({ id, state, num_restarts: num }) => html`<tr key=${id}><th scope="row">${id}</th><td><span class=${`dot ${state}`} aria-hidden="true"></span>${t('health', state)}</td><td>${t('numRestarts', num)}</td></tr>`)}</tbody></table>`;
}
