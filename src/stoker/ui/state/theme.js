// Light or dark: the system's choice until a person switches.
import { effect, signal } from '../vendor/preact.js';

const NAME = 'stoker.theme';
const system = matchMedia('(prefers-color-scheme: dark)');

export const isDark = signal(remembered() ? remembered() === 'dark' : system.matches);
system.addEventListener('change', (event) => { if (!remembered()) isDark.value = event.matches; });
effect(() => { document.documentElement.dataset.theme = isDark.value ? 'dark' : 'light'; });

export function switchTheme() {
  isDark.value = !isDark.value;
  try {
    localStorage.setItem(NAME, isDark.value ? 'dark' : 'light');
  } catch {
    // storage is blocked: the choice lives as long as the page
  }
}

function remembered() {
  try {
    return localStorage.getItem(NAME);
  } catch {
    return null;
  }
}
