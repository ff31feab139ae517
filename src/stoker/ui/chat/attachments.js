// The files of a message, before and after it is sent.
import { html } from '../vendor/preact.js';
import { t } from '../locale/index.js';

export function Attachments({ list, remove }) {
  return html`<ul class="attachments">${list.map((each, at) => html`<li key=${at}>${each.url && !each.kind ? html`<img src=${each.url} alt=${each.name} />` : html`<span>${each.name}${each.text === undefined ? '' : ` (${t('numCharacters', each.text.length)})`}</span>`}
    ${remove && html`<button type="button" class="quiet" aria-label=${t('removeFile', each.name)} onClick=${() => remove(at)}>×</button>`}</li>`)}</ul>`;
}
