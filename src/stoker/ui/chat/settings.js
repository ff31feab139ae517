// The settings of the open conversation: its system prompt and sampling. An empty field leaves the server's default.
import { html, useEffect, useRef } from '../vendor/preact.js';
import { open, update } from '../state/chats.js';

const FIELDS = [
  ['temperature', 'Temperature', { min: 0, max: 5, step: 0.05 }],
  ['top_p', 'Top p', { min: 0, max: 1, step: 0.01 }],
  ['top_k', 'Top k', { min: 0, step: 1 }],
  ['min_p', 'Min p', { min: 0, max: 1, step: 0.01 }],
  ['max_tokens', 'Max tokens', { min: 1, step: 1 }],
  ['seed', 'Seed', { min: 0, step: 1 }],
];

export function Settings({ close }) {
  const dialog = useRef(null);
  const chat = open.value;
  useEffect(() => { dialog.current.showModal(); }, []);
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const given = FIELDS.map(([name]) => [name, form.get(name)]).filter(([, value]) => value !== '');
    const sampling = Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
    update(chat.id, { system: String(form.get('system')), sampling });
    close();
  };
  return html`<dialog ref=${dialog} aria-labelledby="settings-title" onClose=${close}>
    <form onSubmit=${submit}>
      <h2 id="settings-title">Settings of this chat</h2>
      <label class="wide">System prompt<textarea name="system" rows="4" dir="auto" defaultValue=${chat.system}></textarea></label>
      <div class="grid">${FIELDS.map(([name, label, range]) => html`<label key=${name}>${label}
        <input type="number" name=${name} placeholder="default" defaultValue=${chat.sampling[name] ?? ''} ...${range} /></label>`)}</div>
      <div class="actions"><button type="button" class="quiet" onClick=${close}>Cancel</button>
        <button type="submit" class="primary">Save</button></div>
    </form>
  </dialog>`;
}
