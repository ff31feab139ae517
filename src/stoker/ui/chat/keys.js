// The keys of the page, in a dialog.
import { html } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { Dialog } from './dialog.js';

const KEYS = [
  ['Enter', 'keySend'], ['Shift-Enter', 'keyLine'], ['Escape', 'keyStop'], ['↑', 'keyEdit'], ['Ctrl-K', 'keySearch'], ['Ctrl-Shift-O', 'keyNew'],
  ['Ctrl-B', 'keyChats'], ['Ctrl-.', 'keyEngine'], ['Alt-← Alt-→', 'keyVersions'], ['?', 'keyKeys'],
];

export function Keys({ close }) {
  return html`<${Dialog} title=${t('keys')} close=${close}>
    <dl class="keys">${KEYS.map(([name, words]) => html`<div key=${name}><dt>${name.split(' ').map((each) => html`<kbd key=${each}>${each}</kbd> `)}</dt><dd>${t(words)}</dd></div>`)}</dl>
    <div class="actions"><button type="button" onClick=${close}>${t('close')}</button></div><//>`;
}
