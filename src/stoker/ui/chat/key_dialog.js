// The dialog that asks for the API key after the server has answered with 401.
import { html, useEffect, useRef } from '../vendor/preact.js';
import { t } from '../locale/index.js';
import { giveKey, question, refuseKey } from '../state/key.js';

export function KeyDialog() {
  const dialog = useRef(null);
  const isAsked = question.value !== null;
  useEffect(() => {
    const shown = dialog.current;
    shown?.showModal();
    return () => shown?.close();
  }, [isAsked]);
  if (!isAsked) return null;
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    giveKey(String(form.get('key')).trim(), form.has('kept'));
  };
  return html`<dialog ref=${dialog} class="narrow" aria-labelledby="key-title" onCancel=${refuseKey}>
    <form class="inside" onSubmit=${submit}>
      <h2 id="key-title">${t('keyNeeded')}</h2>
      <p class="note">${t('keyNote')}</p>
      ${question.value && html`<p class="error" role="alert">${question.value}</p>`}
      <label class="wide">${t('apiKey')}<input type="password" name="key" required autocomplete="off" autofocus /></label>
      <label class="check"><input type="checkbox" name="kept" /> ${t('keepKey')}</label>
      <div class="actions"><button type="button" class="quiet" onClick=${refuseKey}>${t('cancel')}</button>
        <button type="submit" class="primary">${t('go')}</button></div>
    </form>
  </dialog>`;
}
