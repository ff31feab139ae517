// The page: its parts, its two views and its keys.
import { effect, html, render, signal, useState } from './vendor/preact.js';
import { Composer } from './chat/composer.js';
import { KeyDialog } from './chat/key_dialog.js';
import { Conversation } from './chat/messages.js';
import { Settings } from './chat/settings.js';
import { Sidebar } from './chat/sidebar.js';
import { Engine } from './engine/view.js';
import { loadChats, newChat, open, update } from './state/chats.js';
import { loadModels, models, trouble } from './state/server.js';
import { isDark, switchTheme } from './state/theme.js';

const view = signal(location.hash);
const hasSidebar = signal(matchMedia('(min-width: 50rem)').matches);
addEventListener('hashchange', () => { view.value = location.hash; });

function App() {
  const [isSetting, setSetting] = useState(false);
  const isEngine = view.value === '#engine';
  return html`
    <header class="top">
      <button type="button" class="quiet" aria-label="Chats" aria-expanded=${hasSidebar.value} onClick=${toggleSidebar}>☰</button>
      <h1>Stoker</h1>
      <${ModelChoice} />
      <button type="button" class="quiet" onClick=${() => setSetting(true)}>Settings</button>
      <button type="button" class="quiet" aria-label=${isDark.value ? 'Light colors' : 'Dark colors'} onClick=${switchTheme}>${isDark.value ? '☀' : '☾'}</button>
      <a href="#engine" aria-current=${isEngine ? 'page' : undefined} onClick=${leaveEngine}>Engine</a>
    </header>
    ${trouble.value && html`<p class="banner" role="alert">${trouble.value}</p>`}
    <div class="body">
      ${hasSidebar.value && html`<${Sidebar} close=${closeOnPhone} />`}
      <main>${isEngine ? html`<${Engine} />` : html`<${Conversation} /><${Composer} />`}</main>
    </div>
    ${isSetting && html`<${Settings} close=${() => setSetting(false)} />`}
    <${KeyDialog} />`;
}

function ModelChoice() {
  const choose = (event) => update(open.value.id, { model: event.currentTarget.value });
  return html`<select aria-label="Model" value=${open.value.model || models.value[0]?.id} onChange=${choose}>
    ${models.value.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}
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

addEventListener('keydown', (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  const action = { b: toggleSidebar, '.': () => { location.hash = view.value === '#engine' ? '' : '#engine'; } }[event.key];
  const isNew = event.shiftKey && event.key.toLowerCase() === 'o';
  if (!action && !isNew) return;
  event.preventDefault();
  if (isNew) newChat();
  else action();
});

await loadChats();
effect(() => { document.title = view.value === '#engine' ? 'Engine – Stoker' : `${open.value?.title ?? 'Chat'} – Stoker`; });
render(html`<${App} />`, document.body);
loadModels();
