// The models of the server in a dialog: loaded and unloaded, with progress, and downloaded.
import { html, useEffect, useState } from '../vendor/preact.js';
import { language, number, t } from '../locale/index.js';
import { usePolling } from '../state/polling.js';
import { loadModels, models } from '../state/server.js';
import { pull, send } from '../wire/api.js';
import { Dialog } from './dialog.js';

const LOOK_MS = 700;

export function Models({ close }) {
  const [words, setWords] = useState('');
  usePolling(loadModels, LOOK_MS);
  const change = async (id, verb) => {
    setWords('');
    const problem = await failure(`models/${verb}`, { model: id });
    setWords(problem);
    loadModels();
  };
  return html`<${Dialog} title=${t('models')} close=${close}>
    <ul class="models">${models.value.filter(({ status, parent }) => status && !parent).map((model) => html`<${Row} key=${model.id} model=${model} change=${change} />`)}</ul>
    ${words && html`<p class="error" role="alert">${words}</p>`}
    <${Download} />
    <div class="actions"><button type="button" onClick=${close}>${t('close')}</button></div><//>`;
}

function Row({ model: { id, status, meta, aliases = [] }, change }) {
  const { value, progress, error, memory, waiting } = status;
  const adapters = models.value.filter(({ parent }) => parent === id).map((each) => each.id.slice(id.length + 1));
  const facts = [
    t(`state_${value}`), meta?.n_params && t('numParameters', short(meta.n_params)), meta?.n_ctx && t('contextOf', number(meta.n_ctx)),
    memory && t('memoryOf', short(memory.total)), waiting > 0 && t('numWaiting', waiting), adapters.length > 0 && t('adaptersAre', adapters.join(', ')),
  ];
  return html`<li><div><strong title=${aliases.join(', ')}>${id}</strong><small><span class=${`dot ${value}`} aria-hidden="true"></span>${facts.filter(Boolean).join(' · ')}</small>
      ${value === 'loading' && html`<progress aria-label=${t('loadingModel', id)} value=${progress} />`}${error && html`<small class="error">${error}</small>`}</div>
    ${value === 'unloaded' && html`<button type="button" key="load" aria-label=${t('loadModel', id)} onClick=${() => change(id, 'load')}>${t('load')}</button>`}
    ${value === 'loaded' && html`<button type="button" key="unload" class="quiet" aria-label=${t('unloadModel', id)} onClick=${() => change(id, 'unload')}>${t('unload')}</button>`}</li>`;
}

function Download() {
  const [run, setRun] = useState(null);
  useEffect(() => () => run?.controller.abort(), [run?.controller]);
  const submit = async (event) => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget).get('name')).trim();
    const controller = new AbortController();
    setRun({ controller, status: t('asking'), isOver: false });
    const status = await downloaded(name, controller.signal, (state) => setRun({ controller, ...state }));
    setRun({ controller, status, isOver: true });
    loadModels();
  };
  const isBusy = run !== null && !run.isOver;
  return html`<form class="download" onSubmit=${submit}>
    <label>${t('downloadModel')}<input name="name" required placeholder=${t('downloadHint')} disabled=${isBusy} /></label>
    ${isBusy ? html`<button key="cancel" type="button" onClick=${() => run.controller.abort()}>${t('cancel')}</button>` : html`<button key="download" type="submit">${t('download')}</button>`}
    ${run && html`<p role="status">${run.status} ${isBusy && run.total && html`<progress aria-label=${t('download')} value=${run.completed / run.total} />`}</p>`}
  </form>`;
}

/** Follows a download. Returns how it ended, in words. */
async function downloaded(name, signal, note) {
  try {
    for await (const { status, completed, total } of pull(name, signal)) note({ status, completed, total, isOver: false });
    return t('wasDownloaded', name);
  } catch (error) {
    return signal.aborted ? t('downloadCanceled') : error.message;
  }
}

async function failure(path, body) {
  try {
    const reply = await send(path, { body });
    return reply.ok ? '' : JSON.parse(await reply.text()).error.message;
  } catch (error) {
    return error instanceof TypeError ? t('serverAway') : error.message;
  }
}

/** Billions are written as G, in front of any unit. */
const short = (value) => (value >= 1e9 ? `${(value / 1e9).toLocaleString(language, { maximumFractionDigits: 1 })}\u00a0G` : `${(value / 1e6).toLocaleString(language, { maximumFractionDigits: 0 })}\u00a0M`);
