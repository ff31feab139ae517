// The settings of the open conversation: system prompt, sampling, adapters, tools, presets. An empty field leaves the
// server's default. Below them the language of the page.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { LANGUAGES, chooseLanguage, language, t } from '../locale/index.js';
import { open, update } from '../state/chats.js';
import { modelOf, models, props } from '../state/server.js';
import { keepPreset, presets } from '../store/presets.js';
import { CopyButton } from '../text/copy_button.js';
import { getJson } from '../wire/api.js';
import { curl, json, python } from './code_of_request.js';
import { Dialog } from './dialog.js';

/** @type {[string, {min: number, max?: number, step: number}][]} */
const FIELDS = [
  ['temperature', { min: 0, max: 5, step: 0.05 }], ['top_p', { min: 0, max: 1, step: 0.01 }], ['top_k', { min: 0, step: 1 }],
  ['min_p', { min: 0, max: 1, step: 0.01 }], ['repeat_penalty', { min: 0.01, max: 3, step: 0.01 }],
  ['presence_penalty', { min: -2, max: 2, step: 0.1 }], ['frequency_penalty', { min: -2, max: 2, step: 0.1 }],
  ['max_tokens', { min: 1, step: 1 }], ['seed', { min: 0, step: 1 }],
];
const ADAPTER = 'adapter.';
const THINKING = [['', 'default'], ['on', 'on'], ['off', 'off']];

export function Settings({ close }) {
  const form = useRef(null);
  const chat = open.value;
  const [names, setNames] = useState(Object.keys(presets()));
  const [words, setWords] = useState('');
  const submit = (event) => {
    event.preventDefault();
    const value = valueOf(form.current);
    if (!isToolList(value.tools)) { setWords(t('toolsMustBeList')); return; }
    update(chat.id, value);
    close();
  };
  const choose = ({ currentTarget }) => { const chosen = presets()[currentTarget.value]; if (chosen) fill(form.current, chosen); };
  const keep = () => {
    const name = prompt(t('nameOfPreset'));
    if (!name) return;
    const { system, sampling } = valueOf(form.current);
    keepPreset(name, { system, sampling });
    setNames(Object.keys(presets()));
  };
  const given = () => ({ ...chat, ...valueOf(form.current) });
  return html`<${Dialog} title=${t('settingsTitle')} close=${close}>
    <form ref=${form} onSubmit=${submit}>
      <div class="presets"><select aria-label=${t('preset')} onChange=${choose}><option value="">${t('presetHint')}</option>${names.map((name) => html`<option key=${name}>${name}</option>`)}</select>
        <button type="button" class="quiet" onClick=${keep}>${t('savePreset')}</button></div>
      <label class="wide">${t('systemPrompt')}<textarea name="system" rows="4" dir="auto" defaultValue=${chat.system}></textarea></label>
      <${Sampling} chat=${chat} />
      ${(props.value?.chat_template ?? '').includes('enable_thinking') && html`<label>${t('thinkingSwitch')} <select name="thinking">
        ${THINKING.map(([value, key]) => html`<option key=${key} value=${value} selected=${value === (chat.thinking ?? '')}>${t(key)}</option>`)}</select></label>`}
      <${Adapters} chat=${chat} />
      <details><summary>${t('toolsAndRequest')}</summary>
        <label class="wide">${t('toolsJson')}<textarea name="tools" rows="4" spellcheck="false" placeholder='[{"name": "weather", "parameters": {"type": "object"}}]' defaultValue=${chat.tools ?? ''}></textarea></label>
        <${Request} given=${given} /></details>
      <label class="language">${t('language')} <select value=${language} onChange=${({ currentTarget }) => chooseLanguage(currentTarget.value)}>
        ${Object.entries(LANGUAGES).map(([code, name]) => html`<option key=${code} value=${code} lang=${code}>${name}</option>`)}</select></label>
      ${words && html`<p class="error" role="alert">${words}</p>`}
      <div class="actions"><button type="button" class="quiet" onClick=${close}>${t('cancel')}</button>
        <button type="submit" class="primary">${t('save')}</button></div>
    </form><//>`;
}

function Sampling({ chat }) {
  const defaults = props.value?.default_generation_settings?.params ?? {};
  return html`<div class="grid">${FIELDS.map(([name, range]) => html`<label key=${name}>${t(name)}
    <input type="number" name=${name} placeholder=${defaultOf(name, defaults[name])} defaultValue=${chat.sampling[name] ?? ''} ...${range} /></label>`)}</div>`;
}

/** What holds where the server names no default: these parameters do nothing then. */
const OFF = { min_p: 0, presence_penalty: 0, frequency_penalty: 0 };

function defaultOf(name, value) {
  if (name === 'max_tokens' && (value ?? -1) === -1) return t('noLimit');
  if (name === 'seed' && value === undefined) return t('byChance');
  return value ?? OFF[name] ?? t('default');
}

/** LoRA adapters of the model, each with its weight. A name like `model:adapter` in the list of models has one already. */
function Adapters({ chat }) {
  const [found, setFound] = useState([]);
  const model = modelOf(chat);
  const hasOwn = models.value.some(({ id, parent }) => id === model && parent);
  useEffect(() => {
    if (!hasOwn) getJson(`lora-adapters?model=${encodeURIComponent(model)}`).then(setFound, () => {});
  }, []);
  if (!found.length) return null;
  return html`<fieldset class="grid"><legend>${t('adapters')}</legend>${found.map(({ id, name, scale }) => html`<label key=${id}>${name}
    <input type="number" name=${ADAPTER + name} min="-4" max="4" step="0.05" placeholder=${scale} defaultValue=${chat.adapters?.[name] ?? ''} /></label>`)}</fieldset>`;
}

/** The request that the next message would make, as JSON and as programs. */
function Request({ given }) {
  const [shown, setShown] = useState('');
  return html`<details onToggle=${({ currentTarget }) => setShown(currentTarget.open ? json(given()) : '')}><summary>${t('requestJson')}</summary><pre class="request" tabindex="0">${shown}</pre></details>
    <${CopyButton} text=${() => curl(given())} label=${t('copyCurl')} /> <${CopyButton} text=${() => python(given())} label=${t('copyPython')} />`;
}

function valueOf(form) {
  const data = new FormData(form);
  const numbers = (names, cut = 0) => Object.fromEntries(names.filter((name) => data.get(name)).map((name) => [name.slice(cut), Number(data.get(name))]));
  return {
    system: String(data.get('system')), tools: String(data.get('tools')).trim(), thinking: data.get('thinking') ?? '',
    sampling: numbers(FIELDS.map(([name]) => name)), adapters: numbers([...data.keys()].filter((name) => name.startsWith(ADAPTER)), ADAPTER.length),
  };
}

function fill(form, { system, sampling }) {
  form.elements.system.value = system;
  for (const [name] of FIELDS) form.elements[name].value = sampling[name] ?? '';
}

function isToolList(text) {
  if (!text) return true;
  try {
    const tools = JSON.parse(text);
    return Array.isArray(tools) && tools.every((tool) => (tool.function ?? tool).name);
  } catch {
    return false;
  }
}
