// The settings of the open conversation: system prompt, sampling, tools, presets. An empty field leaves the server's default.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';
import { open, update } from '../state/chats.js';
import { models, props } from '../state/server.js';
import { keepPreset, presets } from '../store/presets.js';
import { copy } from '../text/clipboard.js';
import { requestOf } from './request.js';

const FIELDS = [
  ['temperature', 'Temperature', { min: 0, max: 5, step: 0.05 }],
  ['top_p', 'Top p', { min: 0, max: 1, step: 0.01 }],
  ['top_k', 'Top k', { min: 0, step: 1 }],
  ['min_p', 'Min p', { min: 0, max: 1, step: 0.01 }],
  ['repeat_penalty', 'Repeat penalty', { min: 0.01, max: 3, step: 0.01 }],
  ['presence_penalty', 'Presence penalty', { min: -2, max: 2, step: 0.1 }],
  ['frequency_penalty', 'Frequency penalty', { min: -2, max: 2, step: 0.1 }],
  ['max_tokens', 'Max tokens', { min: 1, step: 1 }],
  ['seed', 'Seed', { min: 0, step: 1 }],
];

export function Settings({ close }) {
  const dialog = useRef(null);
  const form = useRef(null);
  const chat = open.value;
  const [names, setNames] = useState(Object.keys(presets()));
  const [words, setWords] = useState('');
  useEffect(() => { dialog.current.showModal(); }, []);
  const submit = (event) => {
    event.preventDefault();
    const value = valueOf(form.current);
    if (!isToolList(value.tools)) { setWords('Tools must be a JSON list of functions, each with a name.'); return; }
    update(chat.id, value);
    close();
  };
  const choose = ({ currentTarget }) => { const chosen = presets()[currentTarget.value]; if (chosen) fill(form.current, chosen); };
  const keep = () => {
    const name = prompt('Name of the preset');
    if (!name) return;
    const { system, sampling } = valueOf(form.current);
    keepPreset(name, { system, sampling });
    setNames(Object.keys(presets()));
  };
  const defaults = props.value?.default_generation_settings?.params ?? {};
  return html`<dialog ref=${dialog} aria-labelledby="settings-title" onClose=${close}>
    <form ref=${form} onSubmit=${submit}>
      <h2 id="settings-title">Settings of this chat</h2>
      <div class="presets"><select aria-label="Preset" onChange=${choose}><option value="">Preset …</option>${names.map((name) => html`<option key=${name}>${name}</option>`)}</select>
        <button type="button" class="quiet" onClick=${keep}>Save as preset</button></div>
      <label class="wide">System prompt<textarea name="system" rows="4" dir="auto" defaultValue=${chat.system}></textarea></label>
      <div class="grid">${FIELDS.map(([name, label, range]) => html`<label key=${name}>${label}
        <input type="number" name=${name} placeholder=${defaults[name] ?? 'default'} defaultValue=${chat.sampling[name] ?? ''} ...${range} /></label>`)}</div>
      ${(props.value?.chat_template ?? '').includes('enable_thinking') && html`<label>Thinking <select name="thinking">
        ${['', 'on', 'off'].map((value) => html`<option key=${value} value=${value} selected=${value === (chat.thinking ?? '')}>${value || 'default'}</option>`)}</select></label>`}
      <details><summary>Tools and request</summary>
        <label class="wide">Tools (JSON)<textarea name="tools" rows="4" spellcheck="false" placeholder='[{"name": "weather", "parameters": {"type": "object"}}]' defaultValue=${chat.tools ?? ''}></textarea></label>
        <button type="button" class="quiet" onClick=${() => copy(curl(chat))}>Copy as curl</button>
        <button type="button" class="quiet" onClick=${() => copy(python(chat))}>Copy as Python</button></details>
      ${words && html`<p class="error" role="alert">${words}</p>`}
      <div class="actions"><button type="button" class="quiet" onClick=${close}>Cancel</button>
        <button type="submit" class="primary">Save</button></div>
    </form>
  </dialog>`;
}

function valueOf(form) {
  const data = new FormData(form);
  const given = FIELDS.map(([name]) => [name, data.get(name)]).filter(([, value]) => value !== '');
  return { system: String(data.get('system')), tools: String(data.get('tools')).trim(), thinking: data.get('thinking') ?? '', sampling: Object.fromEntries(given.map(([name, value]) => [name, Number(value)])) };
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

const url = () => String(new URL('v1/chat/completions', document.baseURI));
const bodyOf = (chat) => requestOf(chat, chat.nodes[chat.leaf] ?? { id: '', parent: '' }, chat.model || models.value[0]?.id);

function curl(chat) {
  const body = JSON.stringify(bodyOf(chat), null, 2).replaceAll("'", "'\\''");
  return `curl ${url()} -H 'Content-Type: application/json' -d '${body}'`;
}

/** A string of JSON is one of Python too. */
function python(chat) {
  const body = JSON.stringify(JSON.stringify(bodyOf(chat)));
  return `import json, urllib.request\n\nbody = ${body}\nheaders = {"Content-Type": "application/json"}\nrequest = urllib.request.Request("${url()}", body.encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])\n`;
}
