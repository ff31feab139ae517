// Small pictures on buttons, as lines on a grid of 24. Whatever has one also has a name in words.
import { html } from './vendor/preact.js';

const PATHS = {
  attach: 'M20.5 11.5 12 20a5.5 5.5 0 0 1-7.8-7.8l8.8-8.8a3.7 3.7 0 0 1 5.2 5.2l-8.8 8.8a1.8 1.8 0 0 1-2.6-2.6l7.9-7.9',
  chats: 'M4 6h16M4 12h16M4 18h16',
  copy: 'M9 9h11v11H9zM15 9V4H4v11h5',
  dark: 'M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z',
  delete: 'M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  engine: 'M3 12h4l3 7 4-14 3 7h4',
  fork: 'M7 4v16M7 14a8 8 0 0 0 10-7.5M7 4a1 1 0 1 0 0 .1M17 5a1 1 0 1 0 0 .1M7 20a1 1 0 1 0 0 .1',
  light: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4.9 4.9l1.4 1.4M17.7 17.7l1.4 1.4M2 12h2M20 12h2M4.9 19.1l1.4-1.4M17.7 6.3l1.4-1.4',
  models: 'm12 3 8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9',
  more: 'M7 4.5v15l12-7.5z',
  new: 'M12 5v14M5 12h14',
  regenerate: 'M20 11a8 8 0 0 0-14-4.5L4 9M4 4v5h5M4 13a8 8 0 0 0 14 4.5l2-2.5M20 20v-5h-5',
  send: 'M12 19V5M5.5 11.5 12 5l6.5 6.5',
  settings: 'M4 7h9M19 7h1M16 4.5v5M4 17h1M11 17h9M8 14.5v5',
  stop: 'M7 7h10v10H7z',
  tokens: 'M4 5h5v5H4zM11 5h9v5h-9zM4 13h9v5H4zM15 13h5v5h-5z',
};

/** They are shapes that the color of the text shows through. */
const sheet = new CSSStyleSheet();
sheet.replaceSync(Object.entries(PATHS).map(([name, path]) => `.icon-${name} { mask-image: url("${urlOf(path)}"); }`).join('\n'));
document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];

function urlOf(path) {
  const shape = `<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 24 24' fill='none' stroke='black' stroke-width='1.8' stroke-linecap='round' stroke-linejoin='round'><path d='${path}'/></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(shape)}`;
}

/** @param {keyof typeof PATHS} name */
export const icon = (name) => html`<span class=${`icon icon-${name}`} aria-hidden="true"></span>`;
