// Named settings: a system prompt and sampling, for any conversation of this browser.
const NAME = 'stoker.presets';

export function presets() {
  try {
    return JSON.parse(localStorage.getItem(NAME) ?? '{}');
  } catch {
    return {};
  }
}

/** Without a value the preset goes. */
export function keepPreset(name, value) {
  const all = presets();
  if (value) all[name] = value;
  else delete all[name];
  try {
    localStorage.setItem(NAME, JSON.stringify(all));
  } catch {
    // storage is blocked
  }
}
