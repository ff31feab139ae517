// The models of the server in a dialog: loaded and unloaded, with progress, and downloaded.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { usePolling } from '../state/polling.js';
import { loadModels, models } from '../state/server.js';
import { pull, send } from '../wire/api.js';

const LOOK_MS = 700;

export function Models({ close }) {
  const dialog = useRef(null);
  const [words, setWords] = useState('');
  useEffect(() => { dialog.current.showModal(); }, []);
  usePolling(loadModels, LOOK_MS);
  const change = async (id, verb) => {
    setWords('');
    const problem = await failure(`models/${verb}`, { model: id });
    setWords(problem);
    loadModels();
  };
  return html`<dialog ref=${dialog} aria-labelledby="models-title" onClose=${close}>
    <h2 id="models-title">Models</h2>
    <ul class="models">${models.value.filter(({ status }) => status).map((model) => html`<${Row} key=${model.id} model=${model} change=${change} />`)}</ul>
    ${words && html`<p class="error" role="alert">${words}</p>`}
    <${Download} />
    <div class="actions"><button type="button" onClick=${() => dialog.current.close()}>Close</button></div>
  </dialog>`;
}

function Row({ model: { id, status, meta }, change }) {
  const { value, progress, error, memory } = status;
  const facts = [value, meta?.n_params && `${short(meta.n_params)} parameters`, meta?.n_ctx && `context ${meta.n_ctx.toLocaleString()}`, memory && `${short(memory.total)}B of memory`];
  return html`<li><div><strong>${id}</strong><small>${facts.filter(Boolean).join(' · ')}</small>
      ${value === 'loading' && html`<progress aria-label=${`Loading ${id}`} value=${progress} />`}${error && html`<small class="error">${error}</small>`}</div>
    ${value === 'unloaded' && html`<button type="button" key="load" aria-label=${`Load ${id}`} onClick=${() => change(id, 'load')}>Load</button>`}
    ${value === 'loaded' && html`<button type="button" key="unload" class="quiet" aria-label=${`Unload ${id}`} onClick=${() => change(id, 'unload')}>Unload</button>`}</li>`;
}

function Download() {
  const [run, setRun] = useState(null);
  useEffect(() => () => run?.controller.abort(), [run?.controller]);
  const submit = async (event) => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget).get('name')).trim();
    const controller = new AbortController();
    setRun({ controller, status: 'asking', isOver: false });
    const status = await downloaded(name, controller.signal, (state) => setRun({ controller, ...state }));
    setRun({ controller, status, isOver: true });
    loadModels();
  };
  const isBusy = run !== null && !run.isOver;
  return html`<form class="download" onSubmit=${submit}>
    <label>Download a model<input name="name" required placeholder="qwen3:4b, or hf.co/org/repo:Q4_K_M" disabled=${isBusy} /></label>
    ${isBusy ? html`<button key="cancel" type="button" onClick=${() => run.controller.abort()}>Cancel</button>` : html`<button key="download" type="submit">Download</button>`}
    ${run && html`<p role="status">${run.status} ${isBusy && run.total && html`<progress aria-label="Download" value=${run.completed / run.total} />`}</p>`}
  </form>`;
}

/** Follows a download. Returns how it ended, in words. */
async function downloaded(name, signal, note) {
  try {
    for await (const { status, completed, total } of pull(name, signal)) note({ status, completed, total, isOver: false });
    return `${name} was downloaded.`;
  } catch (error) {
    return signal.aborted ? 'The download was canceled; another one goes on from there.' : error.message;
  }
}

async function failure(path, body) {
  try {
    const reply = await send(path, { body });
    return reply.ok ? '' : JSON.parse(await reply.text()).error.message;
  } catch (error) {
    return error instanceof TypeError ? 'The server cannot be reached.' : error.message;
  }
}

const short = (number) => Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 }).format(number).replace('B', 'G');
