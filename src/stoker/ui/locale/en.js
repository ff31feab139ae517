// The words of the page in English, by key. A function gets values, and decides between singular and plural.
import { decimal, number } from './format.js';

const count = (value, one, more) => `${number(value)} ${value === 1 ? one : more}`;
const tokens = (value) => count(value, 'token', 'tokens');

export const en = {
  // Shared
  cancel: 'Cancel', close: 'Close', copied: 'Copied', copy: 'Copy', default: 'default', delete: 'Delete', edit: 'Edit', go: 'Continue', model: 'Model', off: 'off', on: 'on', save: 'Save', search: 'Search', state: 'State', fetching: 'Loading …',

  // The bar above
  backToChat: 'Back to the chat', chats: 'Chats', darkColors: 'Dark colors', engine: 'Engine', engineTitle: 'What the engine computes now', lightColors: 'Light colors',
  modelGone: (name) => `${name} (not here)`, modelNotLoaded: (name) => `${name} (not loaded)`, models: 'Models', modelTitle: 'The model that answers', settings: 'Settings',

  // The server
  connectionBroke: 'The connection to the server broke.', enterKey: 'Enter the API key', apiKey: 'API key', keepKey: 'Keep it in this browser', keyMissing: 'The server needs an API key.', keyNeeded: 'This server needs a key',
  keyNote: 'It is one of the keys that the server was started with.', keyUnknown: 'The server does not know this key.', serverAway: 'The server cannot be reached. The page tries again.', serverError: 'The server reported an error.',
  modelIs: (id, state, progress) => `${id} is ${state}${progress === undefined ? '' : ` (${Math.round(100 * progress)} %)`}`, serverNotReady: (states, status) => `The server is not ready: ${states.join(', ') || status}.`, serverStatus: (status) => `The server answered with status ${status}.`,

  // Chats
  copyOf: (title) => `${title} (copy)`, deleteChat: (title) => `Delete ${title}`, deleteChatAsk: (title) => `Delete "${title}"?`, exportAll: 'Export all', fileHasNoChat: 'There is no conversation in this file.', fileIsNewer: 'This file was written by a newer page than this one.',
  fileIsNoJson: 'This file is no JSON.', import: 'Import', importChats: 'Import chats', isWriting: 'An answer is written', newChat: 'New chat', noChatFound: 'No chat has these words.', saveMarkdown: 'Save as Markdown', searchChats: 'Search chats',
  wereImported: (num) => `${count(num, 'chat was', 'chats were')} imported.`,

  // The conversation
  continue: 'Continue', conversation: 'Conversation', deleteLabel: 'Delete this message and all below it', deleteMessage: 'Delete this message and all below it?', editedMessage: 'Edited text', fork: 'Fork', forkTitle: 'Begin a new chat that starts like this one',
  emptyNote: 'Conversations stay in this browser.', emptyNoteServer: 'Conversations are kept on the server, under your key.', emptyTitle: 'What would you like to know?', contextOf: (size) => `context ${size}`, loadsFirst: 'is loaded with the first message',
  idea1: 'Explain in three sentences how a language model works.', idea2: 'Write a haiku about the sea.', idea3: 'Write a Python function that reverses a string.',
  nextVersion: 'Next version', numAnswers: (num) => count(num, 'answer', 'answers'), numCharacters: (num) => count(num, 'character', 'characters'), numEarlier: (num) => count(num, 'message is earlier', 'messages are earlier'), previousVersion: 'Previous version',
  promptOnce: (prompt, cached, num) => `The prompt of ${tokens(prompt)} was computed once for ${count(num, 'answer', 'answers')}${cached ? `; ${number(cached)} came from the cache` : ''}.`,
  regenerate: 'Regenerate', reasoning: (time) => (time ? `Reasoning, ${decimal(time / 1000)} s` : 'Reasoning'), sendAgain: 'Send again', showEarlier: (num) => `Show ${number(num)} earlier`, thinking: 'Thinking …', toolResult: 'Tool result', useAnswer: (at) => `Use answer ${at}`, tokens: 'Tokens', versions: 'Versions', you: 'You', yourChat: (title) => `you · ${title}`,
  call: 'calls', callOf: (name) => `Call of ${name}`, resultOf: (name) => `Result of ${name}`, sendResults: 'Send results',

  // What an answer took
  contextUsed: 'Context used', contextUsedOf: (used, size) => `${number(used)} of ${number(size)} tokens of context`, draftsKept: (kept, drafted) => `drafts ${kept}/${drafted} kept`, firstToken: (time) => `first token ${time} s`, numTokens: tokens,
  promptTokens: (prompt, cached) => `prompt ${number(prompt)}${cached ? `, ${number(cached)} cached` : ''}`, requestId: (id) => `Request ${id}`, speed: (value) => `${value} tok/s`, end_length: 'cut at the token limit', end_stopped: 'stopped', end_edited: 'edited', end_content_filter: 'filtered', end_error: 'error',
  promptComputed: 'Prompt computed', waitingForFirst: 'Waiting for the first token …',
  readingPrompt: (done, total, cache, rest) => `Reading the prompt: ${done} of ${total} tokens${cache ? `, ${number(cache)} from the cache` : ''}${rest >= 1 ? `, about ${rest.toFixed(0)} s left` : ''}`,

  // The field
  answers: 'Answers', answersTitle: 'Answers to one message', attachFiles: 'Attach files', eachModel: 'Each model', message: 'Message', messageHint: 'Message', removeFile: (name) => `Remove ${name}`, send: 'Send', stop: 'Stop',
  cannotBeRead: (name) => `${name} cannot be read.`, largerThan1: (name) => `${name} is larger than 1 MB.`, largerThan20: (name) => `${name} is larger than 20 MB.`, noImages: (name) => `${name}: this model takes no images.`, noRecordings: (name) => `${name}: this model takes no recordings.`,
  notAnImage: (name) => `${name} is no image that the browser can read.`, notAText: (name) => `${name} is no text.`,

  // Code
  copyCode: 'Copy code', saveCode: 'Save code', wrap: 'Wrap',

  // Settings
  adapters: 'Adapters', byChance: 'random', noLimit: 'no limit', copyCurl: 'Copy as curl', copyPython: 'Copy as Python', language: 'Language', nameOfPreset: 'Name of the preset', preset: 'Preset', presetHint: 'Preset …', requestJson: 'Request as JSON', savePreset: 'Save as preset', settingsTitle: 'Settings of this chat', systemPrompt: 'System prompt',
  thinkingSwitch: 'Thinking', toolsAndRequest: 'Tools and request', toolsJson: 'Tools (JSON)', toolsMustBeList: 'Tools must be a JSON list of functions, each with a name.',
  temperature: 'Temperature', top_p: 'Top p', top_k: 'Top k', min_p: 'Min p', repeat_penalty: 'Repeat penalty', presence_penalty: 'Presence penalty', frequency_penalty: 'Frequency penalty', max_tokens: 'Max tokens', seed: 'Seed',

  // Models
  adaptersAre: (names) => `adapters ${names}`, asking: 'asking', download: 'Download', downloadCanceled: 'The download was canceled; another one goes on from there.', downloadHint: 'qwen3:4b, or hf.co/org/repo:Q4_K_M', downloadModel: 'Download a model', load: 'Load', loadingModel: (id) => `Loading ${id}`, loadModel: (id) => `Load ${id}`,
  memoryOf: (size) => `${size}B of memory`, numParameters: (num) => `${num} parameters`, numWaiting: (num) => count(num, 'request waits', 'requests wait'), state_loaded: 'loaded', state_loading: 'loading', state_unloaded: 'not loaded', unload: 'Unload', unloadModel: (id) => `Unload ${id}`, wasDownloaded: (name) => `${name} was downloaded.`,

  // Keys
  keys: 'Keys', keySend: 'sends the message', keyLine: 'makes a new line', keyStop: 'stops the answer', keyEdit: 'in an empty field edits the last message', keySearch: 'searches the chats', keyNew: 'begins a chat', keyChats: 'shows or hides the list of chats',
  keyEngine: 'changes between the chat and the engine view', keyVersions: 'show other versions of a message', keyKeys: 'shows this list',
};
