// The page: its parts, its two views and its keys.
import { loadEngineWords, loadLanguage, t } from './locale/index.js';
import { effect, html, render, signal, useEffect } from './vendor/preact.js';
import { resume, stop } from './chat/answer.js';
import { Composer } from './chat/composer.js';
import { KeyDialog } from './chat/key_dialog.js';
import { Conversation } from './chat/messages.js';
import { Sidebar } from './chat/sidebar.js';
import { Top } from './chat/top.js';
import { inspected } from './inspect/state.js';
import { loadChats, newChat, open, syncChats, titleOf } from './state/chats.js';
import { isLocked } from './state/key.js';
import { loadModels, loadProps, look, modelOf, models, noteAway, trouble } from './state/server.js';
import './state/theme.js';
import { closeOnPhone, hasSidebar, isBeside, isEngine, showsKeys, showsModels, showsSettings, toggleEngine, toggleSidebar } from './state/view.js';

const PATIENCE_MS = 1000;
const IDLE_MS = 3000;
/** Components that are fetched when they are first wanted, so that the chat appears earlier; null until then. */
const engineView = signal(null);
const inspection = signal(null);
const settings = signal(null);
const modelList = signal(null);
const keyList = signal(null);

function App() {
  const model = modelOf(open.value);
  const state = models.value.find(({ id }) => id === model)?.status?.value;
  useEffect(() => { loadProps(model); }, [model, state]);
  if (isLocked.value) return html`<header class="top"><h1>Stoker</h1></header><${Banner} /><main class="locked"><button type="button" onClick=${loadModels}>${t('enterKey')}</button></main><${KeyDialog} />`;
  return html`<${Top} /><${Banner} />
    <div class="body">
      ${hasSidebar.value && html`<${Sidebar} close=${closeOnPhone} />`}
      <main class=${isBeside.value ? 'beside' : ''}>
        ${(!isEngine.value || isBeside.value) && html`<div class="chat"><${Conversation} /><${Composer} key=${open.value.id} id=${open.value.id} /></div>`}
        ${isEngine.value && (engineView.value ? html`<${engineView.value} />` : html`<p class="waiting">${t('fetching')}</p>`)}
      </main>
    </div>
    ${[[showsSettings, settings], [showsModels, modelList], [showsKeys, keyList]].map(([shows, dialog], at) => shows.value && dialog.value
      && html`<${dialog.value} key=${at} close=${() => { shows.value = false; }} />`)}
    ${inspected.value && inspection.value && html`<${inspection.value} />`}
    <${KeyDialog} />`;
}

const Banner = () => trouble.value && html`<p class="banner" role="alert">${trouble.value}</p>`;

function search() {
  hasSidebar.value = true;
  requestAnimationFrame(() => document.getElementById('search')?.focus());
}

/** The versions of the last message that has several. */
function step(by) {
  const buttons = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(`[data-step="${by}"]`)]);
  buttons.at(-1)?.click();
}

const WITH_CONTROL = { b: toggleSidebar, k: search, '.': toggleEngine };
const WITH_ALT = { ArrowLeft: () => step(-1), ArrowRight: () => step(1) };

function actionOf(event) {
  if (event.altKey) return WITH_ALT[event.key];
  if (event.ctrlKey || event.metaKey) return event.shiftKey && event.key.toLowerCase() === 'o' ? newChat : WITH_CONTROL[event.key];
  const isTyping = event.target.closest?.('input, textarea, select');
  if (event.key === 'Escape') return isTyping || document.querySelector('dialog[open]') ? undefined : () => stop(open.value?.id);
  return event.key === '?' && !isTyping ? () => { showsKeys.value = true; } : undefined;
}

addEventListener('keydown', (event) => {
  const action = actionOf(event);
  if (!action) return;
  event.preventDefault();
  action();
});

/** Fetches a part of the page once it is wanted. */
function fetched(isWanted, component, load) {
  effect(() => {
    void trouble.value; // when the server is back, it is tried again
    if (isWanted() && !component.peek()) load().then((found) => { component.value = found; }, noteAway);
  });
}

fetched(() => isEngine.value, engineView, async () => {
  const [{ Engine }] = await Promise.all([import('./engine/view.js'), loadEngineWords(), loadStyle('engine')]);
  return Engine;
});
fetched(() => inspected.value, inspection, async () => (await Promise.all([import('./inspect/dialog.js'), loadEngineWords()]))[0].Inspection);
fetched(() => showsSettings.value, settings, async () => (await import('./chat/settings.js')).Settings);
fetched(() => showsModels.value, modelList, async () => (await import('./chat/models.js')).Models);
fetched(() => showsKeys.value, keyList, async () => (await import('./chat/keys.js')).Keys);

function loadStyle(name) {
  const link = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: `ui/style/${name}.css` });
  document.head.append(link);
  return new Promise((resolve, reject) => { link.onload = resolve; link.onerror = () => reject(new TypeError()); });
}

/** Nothing is shown before it is known whether the server wants a key. A server that does not say so soon holds up no page. */
function isKnown(loaded) {
  return new Promise((/** @type {(value?: any) => void} */ resolve) => {
    loaded.then(resolve);
    effect(() => { if (isLocked.value) resolve(); });
    setTimeout(resolve, PATIENCE_MS);
  });
}

let isSynced = false;
await loadLanguage();
look();
const loaded = loadModels();
await Promise.all([loadChats(), isKnown(loaded)]);
effect(() => { document.title = `${isEngine.value ? t('engine') : open.value ? titleOf(open.value) : ''} – Stoker`; });
render(html`<${App} />`, document.body);
loaded.then(resume);
setTimeout(() => import('./store/offline.js').then(({ keepPage }) => keepPage(), () => {}), IDLE_MS);
effect(() => { if (!isLocked.value && models.value.length && !isSynced) { isSynced = true; syncChats(); } });
addEventListener('visibilitychange', () => { if (!document.hidden && !isLocked.value) syncChats(); });
