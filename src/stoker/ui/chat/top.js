// The bar above everything: the list of chats, the model, and the ways to other views.
import { html } from '../vendor/preact.js';
import { icon } from '../icons.js';
import { t } from '../locale/index.js';
import { open, update } from '../state/chats.js';
import { modelOf, writers } from '../state/server.js';
import { isDark, switchTheme } from '../state/theme.js';
import { hasSidebar, isEngine, leaveEngine, showsModels, showsSettings, toggleSidebar } from '../state/view.js';

export function Top() {
  return html`<header class="top">
    <button type="button" class="quiet" aria-label=${t('chats')} title=${t('chats')} aria-expanded=${hasSidebar.value} onClick=${toggleSidebar}>${icon('chats')}</button>
    <h1>Stoker</h1>
    <${ModelChoice} />
    <span class="room"></span>
    <button type="button" class="quiet named" aria-label=${t('models')} title=${t('models')} onClick=${() => { showsModels.value = true; }}>${icon('models')}<span>${t('models')}</span></button>
    <button type="button" class="quiet named" aria-label=${t('settings')} title=${t('settings')} onClick=${() => { showsSettings.value = true; }}>${icon('settings')}<span>${t('settings')}</span></button>
    <button type="button" class="quiet" aria-label=${isDark.value ? t('lightColors') : t('darkColors')} title=${isDark.value ? t('lightColors') : t('darkColors')} onClick=${switchTheme}>${icon(isDark.value ? 'light' : 'dark')}</button>
    <a href="#engine" class="named" aria-current=${isEngine.value ? 'page' : undefined} title=${isEngine.value ? t('backToChat') : t('engineTitle')} onClick=${leaveEngine}>${icon('engine')}<span>${t('engine')}</span></a>
  </header>`;
}

function ModelChoice() {
  const choose = (event) => update(open.value.id, { model: event.currentTarget.value });
  const model = modelOf(open.value);
  const known = writers();
  return html`<select aria-label=${t('model')} title=${t('modelTitle')} value=${model} onChange=${choose}>
    ${model && !known.some(({ id }) => id === model) && html`<option value=${model}>${t('modelGone', model)}</option>`}
    ${known.map(({ id, status }) => html`<option key=${id} value=${id}>${status?.value === 'unloaded' ? t('modelNotLoaded', id) : id}</option>`)}
  </select>`;
}
