// The page: its parts, its two views and its keys.
import { effect, html, render, signal, useEffect, useState } from './vendor/preact.js';
import { resume } from './chat/answer.js';
import { Composer } from './chat/composer.js';
import { KeyDialog } from './chat/key_dialog.js';
import { Keys } from './chat/keys.js';
import { Conversation } from './chat/messages.js';
import { Models } from './chat/models.js';
import { Settings } from './chat/settings.js';
import { Sidebar } from './chat/sidebar.js';
import { Engine } from './engine/view.js';
import { Inspection } from './inspect/dialog.js';
import { loadChats, newChat, open, update } from './state/chats.js';
import { isLocked } from './state/key.js';
import { loadModels, loadProps, look, models, trouble } from './state/server.js';
import { isDark, switchTheme } from './state/theme.js';

const PATIENCE_MS = 1000;
const view = signal(location.hash);
const hasSidebar = signal(matchMedia('(min-width: 50rem)').matches);
const showsKeys = signal(false);
addEventListener('hashchange', () => { view.value = location.hash; });

function App() {
  const [isSetting, setSetting] = useState(false);
  const [isChoosing, setChoosing] = useState(false);
  const isEngine = view.value === '#engine';
  const model = open.value.model || models.value[0]?.id;
  const state = models.value.find(({ id }) => id === model)?.status?.value;
  useEffect(() => { loadProps(model); }, [model, state]);
  if (isLocked.value) return html`<header class="top"><h1>Stoker</h1></header>${trouble.value && html`<p class="banner" role="alert">${trouble.value}</p>`}<main class="locked"><button type="button" onClick=${loadModels}>Enter the API key</button></main><${KeyDialog} />`;
  return html`
    <header class="top">
      <button type="button" class="quiet" aria-label="Chats" aria-expanded=${hasSidebar.value} onClick=${toggleSidebar}>☰</button>
      <h1>Stoker</h1>
      <${ModelChoice} model=${model} />
      <button type="button" class="quiet" onClick=${() => setChoosing(true)}>Models</button>
      <button type="button" class="quiet" onClick=${() => setSetting(true)}>Settings</button>
      <button type="button" class="quiet" aria-label=${isDark.value ? 'Light colors' : 'Dark colors'} onClick=${switchTheme}>${isDark.value ? '☀' : '☾'}</button>
      <a href="#engine" aria-current=${isEngine ? 'page' : undefined} onClick=${leaveEngine}>Engine</a>
    </header>
    ${trouble.value && html`<p class="banner" role="alert">${trouble.value}</p>`}
    <div class="body">
      ${hasSidebar.value && html`<${Sidebar} close=${closeOnPhone} />`}
      <main>${isEngine ? html`<${Engine} />` : html`<${Conversation} /><${Composer} key=${open.value.id} id=${open.value.id} />`}</main>
    </div>
    ${isSetting && html`<${Settings} close=${() => setSetting(false)} />`}
    ${isChoosing && html`<${Models} close=${() => setChoosing(false)} />`}
    ${showsKeys.value && html`<${Keys} close=${() => { showsKeys.value = false; }} />`}
    <${Inspection} />
    <${KeyDialog} />`;
}

function ModelChoice({ model }) {
  const choose = (event) => update(open.value.id, { model: event.currentTarget.value });
  return html`<select aria-label="Model" value=${model} onChange=${choose}>
    ${models.value.map(({ id, status }) => html`<option key=${id} value=${id}>${id}${status?.value === 'unloaded' ? ' (not loaded)' : ''}</option>`)}
  </select>`;
}

/** In the engine view the link leads back to the chat. */
function leaveEngine(event) {
  if (view.value !== '#engine') return;
  event.preventDefault();
  location.hash = '';
}

function toggleSidebar() {
  hasSidebar.value = !hasSidebar.value;
}

function closeOnPhone() {
  if (!matchMedia('(min-width: 50rem)').matches) hasSidebar.value = false;
}

function search() {
  hasSidebar.value = true;
  requestAnimationFrame(() => document.getElementById('search')?.focus());
}

/** The versions of the last message that has several. */
function step(name) {
  [...document.querySelectorAll(`[aria-label="${name}"]`)].at(-1)?.click();
}

const WITH_CONTROL = { b: toggleSidebar, k: search, '.': () => { location.hash = view.value === '#engine' ? '' : '#engine'; } };
const WITH_ALT = { ArrowLeft: () => step('Previous version'), ArrowRight: () => step('Next version') };

function actionOf(event) {
  if (event.altKey) return WITH_ALT[event.key];
  if (event.ctrlKey || event.metaKey) return event.shiftKey && event.key.toLowerCase() === 'o' ? newChat : WITH_CONTROL[event.key];
  const isTyping = event.target.closest?.('input, textarea, select');
  return event.key === '?' && !isTyping ? () => { showsKeys.value = true; } : undefined;
}

addEventListener('keydown', (event) => {
  const action = actionOf(event);
  if (!action) return;
  event.preventDefault();
  action();
});

/** Nothing is shown before it is known whether the server wants a key. A server that does not say so soon holds up no page. */
function isKnown(loaded) {
  return new Promise((resolve) => {
    loaded.then(resolve);
    effect(() => { if (isLocked.value) resolve(); });
    setTimeout(resolve, PATIENCE_MS);
  });
}

look();
const loaded = loadModels();
await Promise.all([loadChats(), isKnown(loaded)]);
effect(() => { document.title = view.value === '#engine' ? 'Engine – Stoker' : `${open.value?.title ?? 'Chat'} – Stoker`; });
render(html`<${App} />`, document.body);
loaded.then(resume);
