// Calls of tools as cards. A person types what each gives, and the model goes on.
import { html } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { giveResults } from './answer.js';

export function ToolCalls({ id, node, isOpen }) {
  const submit = (event) => {
    event.preventDefault();
    giveResults(id, node, Object.fromEntries(new FormData(event.currentTarget)));
  };
  return html`<form class="calls" onSubmit=${submit}>
    ${node.tool_calls.map((call) => html`<section class="call" key=${call.id} aria-label=${t('callOf', call.function.name)}>
      <h3><small>${t('call')}</small> <code>${call.function.name}</code></h3><pre tabindex="0">${pretty(call.function.arguments)}</pre>
      ${isOpen && html`<label>${t('resultOf', call.function.name)}<textarea name=${call.id} rows="2" dir="auto"></textarea></label>`}
    </section>`)}
    ${isOpen && html`<button type="submit">${t('sendResults')}</button>`}
  </form>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is still being written
  }
}
