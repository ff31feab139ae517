// What a conversation shows before its first message.
import { html } from '../vendor/preact.js';
import { number, t } from '../locale/index.js';
import { open } from '../state/chats.js';
import { modelOf, models } from '../state/server.js';
import { isRemote } from '../store/remote.js';
import { say } from './answer.js';

const IDEAS = ['idea1', 'idea2', 'idea3'];

/** The button goes with the first message, so the focus goes to the field. */
function ask(text) {
  say(open.value.id, text);
  /** @type {HTMLElement | null} */ (document.querySelector('.composer textarea'))?.focus();
}

export function Empty() {
  const name = modelOf(open.value);
  const model = models.value.find(({ id }) => id === name);
  const facts = [name, model?.max_model_len && t('contextOf', number(model.max_model_len)), model?.status?.value === 'unloaded' && t('loadsFirst')];
  return html`<div class="empty"><h2>${t('emptyTitle')}</h2>
    <p>${facts.filter(Boolean).join(' · ')}</p>
    <ul class="ideas">${IDEAS.map((key) => html`<li key=${key}><button type="button" onClick=${() => ask(t(key))}>${t(key)}</button></li>`)}</ul>
    <p class="note">${t(isRemote.value ? 'emptyNoteServer' : 'emptyNote')}</p></div>`;
}
