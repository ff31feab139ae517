// What is shown: the chat, the engine, both beside each other, and the dialogs.
import { computed, signal } from '../vendor/preact.js';

const WIDE = '(min-width: 50rem)';
const ENGINE = '#engine';
const BESIDE = '#beside';

/** The part of the address behind `#`. */
const place = signal(location.hash);
addEventListener('hashchange', () => { place.value = location.hash; });

export const isEngine = computed(() => place.value === ENGINE || place.value === BESIDE);
/** The engine view and the chat share the window. */
export const isBeside = computed(() => place.value === BESIDE);
export const hasSidebar = signal(matchMedia(WIDE).matches);
export const showsKeys = signal(false);
export const showsModels = signal(false);
export const showsSettings = signal(false);

export const toggleSidebar = () => { hasSidebar.value = !hasSidebar.value; };
export const toggleEngine = () => { location.hash = isEngine.value ? '' : ENGINE; };
export const toggleBeside = () => { location.hash = isBeside.value ? ENGINE : BESIDE; };
export const showChat = () => { if (!isBeside.value) location.hash = ''; };

/** On a phone the list of chats covers the conversation. */
export function closeOnPhone() {
  if (!matchMedia(WIDE).matches) hasSidebar.value = false;
}

/** In the engine view the link leads back to the chat. */
export function leaveEngine(event) {
  if (!isEngine.value) return;
  event.preventDefault();
  location.hash = '';
}
