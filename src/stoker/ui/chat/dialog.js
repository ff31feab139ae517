// A dialog with a title. Escape closes it, and so does a click beside it.
import { html, useEffect, useRef, useState } from '../vendor/preact.js';

let numOpened = 0;

/** @param {{title: string, close: () => void, name?: string, children?: any}} props */
export function Dialog({ title, close, name, children }) {
  const dialog = useRef(null);
  const [id] = useState(() => `dialog-${(numOpened += 1)}`);
  useEffect(() => {
    const shown = dialog.current;
    shown.showModal();
    return () => shown.close(); // the focus goes back to where it was
  }, []);
  return html`<dialog ref=${dialog} class=${name} aria-labelledby=${id} onClose=${close} onMouseDown=${(event) => { if (event.target === dialog.current) close(); }}>
    <div class="inside"><h2 id=${id}>${title}</h2>${children}</div></dialog>`;
}
