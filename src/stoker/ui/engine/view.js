// The state of the engines, asked for once a second while it can be seen.
import { html, useEffect, useState } from '../vendor/preact.js';
import { send } from '../wire/api.js';

const EVERY_MS = 1000;

export function Engine() {
  const [state, setState] = useState({});
  useEffect(() => watch(setState), []);
  const { health, slots, props, error } = state;
  return html`<section class="engine" aria-label="Engine">
    <h2>Engine</h2>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${health && html`<${Models} models=${health.models} status=${health.status} />`}
    ${Array.isArray(slots) && html`<${Slots} slots=${slots} />`}
    ${props && html`<${Server} props=${props} />`}
  </section>`;
}

/** Gives what ends the watch. A round begins a second after the last one has ended, and hidden pages ask nothing. */
function watch(setState) {
  const controller = new AbortController();
  let timer = 0;
  const round = async () => {
    if (!document.hidden) setState(await look(controller.signal));
    if (!controller.signal.aborted) timer = setTimeout(round, EVERY_MS);
  };
  round();
  return () => { controller.abort(); clearTimeout(timer); };
}

async function look(signal) {
  try {
    const [health, slots, props] = [await send('health', { signal }), await send('slots', { signal }), await send('props', { signal })];
    return { health: await health.json(), slots: slots.ok ? await slots.json() : null, props: props.ok ? await props.json() : null };
  } catch (error) {
    return { error: error instanceof TypeError ? 'The server cannot be reached.' : error.message };
  }
}

function Models({ models, status }) {
  return html`<table><caption>Models: ${status}</caption>
    <thead><tr><th scope="col">Model</th><th scope="col">State</th><th scope="col">Running</th><th scope="col">Waiting</th>
      <th scope="col">KV used</th><th scope="col">KV retained</th><th scope="col">KV capacity</th><th scope="col">Restarts</th></tr></thead>
    <tbody>${models.map((model) => html`<tr key=${model.id}><th scope="row">${model.id}</th><td>${model.state}</td>
      <td>${number(model.num_running)}</td><td>${number(model.num_waiting)}</td>
      <td>${number(model.kv_used)} ${model.kv_capacity && html`<meter aria-label="KV used" max=${model.kv_capacity} value=${model.kv_used} />`}</td>
      <td>${number(model.kv_retained)}</td><td>${number(model.kv_capacity)}</td><td>${number(model.num_restarts)}</td></tr>`)}</tbody></table>`;
}

function Slots({ slots }) {
  const shown = slots.filter((slot) => slot.is_processing || slot.n_tokens > 0);
  return html`<table><caption>Sequences: ${shown.length} of ${slots.length} slots hold tokens</caption>
    <thead><tr><th scope="col">Slot</th><th scope="col">State</th><th scope="col">Tokens</th><th scope="col">Prompt</th>
      <th scope="col">Written</th><th scope="col">Request</th></tr></thead>
    <tbody>${shown.map((slot) => html`<tr key=${`${slot.replica ?? ''}.${slot.id}`}><th scope="row">${slot.id}</th>
      <td>${slot.is_processing ? 'running' : 'retained'}</td><td>${number(slot.n_tokens)}</td><td>${number(slot.n_prompt_tokens)}</td>
      <td>${number(slot.n_decoded)}</td><td class="id">${slot.request_id ?? ''}</td></tr>`)}</tbody></table>`;
}

function Server({ props }) {
  const rows = [
    ['Model', props.model_alias ?? props.model_path],
    ['Context', number(props.default_generation_settings?.n_ctx)],
    ['Slots', number(props.total_slots)],
    ['Build', props.build_info],
  ];
  return html`<table><caption>Server</caption><tbody>${rows.filter(([, value]) => value).map(([name, value]) =>
    html`<tr key=${name}><th scope="row">${name}</th><td>${value}</td></tr>`)}</tbody></table>`;
}

const number = (value) => (value === undefined || value === null ? '–' : value.toLocaleString());
