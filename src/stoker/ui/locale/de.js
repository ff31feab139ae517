// The words of the page in German, by the keys of `en.js`. What is missing here is shown in English.
import { decimal, number } from './format.js';

const count = (value, one, more) => `${number(value)} ${value === 1 ? one : more}`;
const tokens = (value) => `${number(value)} Token`;
const ms = (value) => `${decimal(value)} ms`;

export const words = {
  cancel: 'Abbrechen', close: 'Schließen', copied: 'Kopiert', copy: 'Kopieren', default: 'Vorgabe', delete: 'Löschen', edit: 'Bearbeiten', go: 'Weiter', model: 'Modell', off: 'aus', on: 'an', save: 'Speichern', search: 'Suchen', state: 'Zustand', fetching: 'Wird geladen …',

  backToChat: 'Zurück zum Chat', chats: 'Chats', darkColors: 'Dunkle Farben', engine: 'Engine', engineTitle: 'Was die Engine gerade rechnet', lightColors: 'Helle Farben',
  modelGone: (name) => `${name} (nicht vorhanden)`, modelNotLoaded: (name) => `${name} (nicht geladen)`, models: 'Modelle', modelTitle: 'Das Modell, das antwortet', settings: 'Einstellungen',

  connectionBroke: 'Die Verbindung zum Server ist abgebrochen.', enterKey: 'API-Schlüssel eingeben', apiKey: 'API-Schlüssel', keepKey: 'In diesem Browser behalten', keyMissing: 'Der Server verlangt einen API-Schlüssel.', keyNeeded: 'Dieser Server verlangt einen Schlüssel',
  keyNote: 'Es ist einer der Schlüssel, mit denen der Server gestartet wurde.', keyUnknown: 'Der Server kennt diesen Schlüssel nicht.', serverAway: 'Der Server ist nicht erreichbar. Die Seite versucht es weiter.', serverError: 'Der Server meldet einen Fehler.',
  modelIs: (id, state, progress) => `${id} ist ${HEALTH[state] ?? state}${progress === undefined ? '' : ` (${Math.round(100 * progress)} %)`}`, serverNotReady: (states, status) => `Der Server ist nicht bereit: ${states.join(', ') || status}.`, serverStatus: (status) => `Der Server hat mit Status ${status} geantwortet.`,

  copyOf: (title) => `${title} (Kopie)`, deleteChat: (title) => `${title} löschen`, deleteChatAsk: (title) => `„${title}“ löschen?`, exportAll: 'Alle exportieren', fileHasNoChat: 'In dieser Datei ist keine Unterhaltung.', fileIsNewer: 'Diese Datei hat eine neuere Seite geschrieben als diese.',
  fileIsNoJson: 'Diese Datei ist kein JSON.', import: 'Importieren', importChats: 'Chats importieren', isWriting: 'Eine Antwort wird geschrieben', newChat: 'Neuer Chat', noChatFound: 'Kein Chat enthält diese Wörter.', saveMarkdown: 'Als Markdown speichern', searchChats: 'Chats durchsuchen',
  wereImported: (num) => `${count(num, 'Chat wurde', 'Chats wurden')} importiert.`,

  continue: 'Fortsetzen', conversation: 'Unterhaltung', deleteLabel: 'Diese Nachricht und alles darunter löschen', deleteMessage: 'Diese Nachricht und alles darunter löschen?', editedMessage: 'Geänderter Text', fork: 'Abzweigen', forkTitle: 'Einen neuen Chat beginnen, der wie dieser anfängt',
  emptyNote: 'Unterhaltungen bleiben in diesem Browser.', emptyNoteServer: 'Unterhaltungen liegen auf dem Server, unter Ihrem Schlüssel.', emptyTitle: 'Was möchten Sie wissen?', contextOf: (size) => `Kontext ${size}`, loadsFirst: 'wird mit der ersten Nachricht geladen',
  idea1: 'Erkläre in drei Sätzen, wie ein Sprachmodell funktioniert.', idea2: 'Schreibe ein Haiku über das Meer.', idea3: 'Schreibe eine Python-Funktion, die einen Text umdreht.',
  nextVersion: 'Nächste Fassung', numAnswers: (num) => count(num, 'Antwort', 'Antworten'), numCharacters: (num) => `${number(num)} Zeichen`, numEarlier: (num) => count(num, 'Nachricht ist älter', 'Nachrichten sind älter'), previousVersion: 'Vorige Fassung',
  promptOnce: (prompt, cached, num) => `Der Prompt von ${tokens(prompt)} wurde einmal für ${count(num, 'Antwort', 'Antworten')} berechnet${cached ? `; ${number(cached)} kamen aus dem Cache` : ''}.`,
  regenerate: 'Neu schreiben', reasoning: (time) => (time ? `Überlegung, ${decimal(time / 1000)} s` : 'Überlegung'), sendAgain: 'Noch einmal senden', showEarlier: (num) => `${number(num)} ältere zeigen`, thinking: 'Überlegt …', toolResult: 'Ergebnis eines Werkzeugs', useAnswer: (at) => `Antwort ${at} nehmen`, versions: 'Fassungen', you: 'Sie',
  call: 'ruft', callOf: (name) => `Aufruf von ${name}`, resultOf: (name) => `Ergebnis von ${name}`, sendResults: 'Ergebnisse senden',

  contextUsed: 'Belegter Kontext', contextUsedOf: (used, size) => `${number(used)} von ${number(size)} Token Kontext`, draftsKept: (kept, drafted) => `Entwürfe ${kept}/${drafted} behalten`, firstToken: (time) => `erstes Token ${time} s`, numTokens: tokens,
  promptTokens: (prompt, cached) => `Prompt ${number(prompt)}${cached ? `, ${number(cached)} aus dem Cache` : ''}`, requestId: (id) => `Anfrage ${id}`, speed: (value) => `${value} Token/s`, end_length: 'an der Grenze abgeschnitten', end_stopped: 'angehalten', end_edited: 'bearbeitet', end_content_filter: 'gefiltert', end_error: 'Fehler',
  promptComputed: 'Berechneter Prompt', waitingForFirst: 'Wartet auf das erste Token …',
  readingPrompt: (done, total, cache, rest) => `Liest den Prompt: ${done} von ${total} Token${cache ? `, ${number(cache)} aus dem Cache` : ''}${rest >= 1 ? `, noch etwa ${rest.toFixed(0)} s` : ''}`,

  answers: 'Antworten', answersTitle: 'Antworten auf eine Nachricht', attachFiles: 'Dateien anhängen', eachModel: 'Jedes Modell', message: 'Nachricht', messageHint: 'Nachricht', removeFile: (name) => `${name} entfernen`, send: 'Senden', stop: 'Anhalten',
  cannotBeRead: (name) => `${name} kann nicht gelesen werden.`, largerThan1: (name) => `${name} ist größer als 1 MB.`, largerThan20: (name) => `${name} ist größer als 20 MB.`, noImages: (name) => `${name}: Dieses Modell nimmt keine Bilder.`, noRecordings: (name) => `${name}: Dieses Modell nimmt keine Aufnahmen.`,
  notAnImage: (name) => `${name} ist kein Bild, das der Browser lesen kann.`, notAText: (name) => `${name} ist kein Text.`,

  copyCode: 'Code kopieren', saveCode: 'Code speichern', wrap: 'Umbrechen',

  adapters: 'Adapter', byChance: 'zufällig', noLimit: 'ohne Grenze', copyCurl: 'Als curl kopieren', copyPython: 'Als Python kopieren', language: 'Sprache', nameOfPreset: 'Name der Vorlage', preset: 'Vorlage', presetHint: 'Vorlage …', requestJson: 'Anfrage als JSON', savePreset: 'Als Vorlage speichern', settingsTitle: 'Einstellungen dieses Chats', systemPrompt: 'System-Prompt',
  thinkingSwitch: 'Überlegen', toolsAndRequest: 'Werkzeuge und Anfrage', toolsJson: 'Werkzeuge (JSON)', toolsMustBeList: 'Werkzeuge müssen eine JSON-Liste von Funktionen sein, jede mit einem Namen.',
  temperature: 'Temperatur', top_p: 'Top p', top_k: 'Top k', min_p: 'Min p', repeat_penalty: 'Repeat penalty', presence_penalty: 'Presence penalty', frequency_penalty: 'Frequency penalty', max_tokens: 'Höchstens Token', seed: 'Seed',

  adaptersAre: (names) => `Adapter ${names}`, asking: 'fragt an', download: 'Herunterladen', downloadCanceled: 'Der Download wurde abgebrochen; der nächste macht dort weiter.', downloadHint: 'qwen3:4b oder hf.co/org/repo:Q4_K_M', downloadModel: 'Ein Modell herunterladen', load: 'Laden', loadingModel: (id) => `${id} wird geladen`, loadModel: (id) => `${id} laden`,
  memoryOf: (size) => `${size}B Speicher`, numParameters: (num) => `${num} Parameter`, numWaiting: (num) => count(num, 'Anfrage wartet', 'Anfragen warten'), state_loaded: 'geladen', state_loading: 'lädt', state_unloaded: 'nicht geladen', unload: 'Entladen', unloadModel: (id) => `${id} entladen`, wasDownloaded: (name) => `${name} wurde heruntergeladen.`,

  keys: 'Tasten', keySend: 'sendet die Nachricht', keyLine: 'macht eine neue Zeile', keyStop: 'hält die Antwort an', keyEdit: 'bearbeitet in einem leeren Feld die letzte Nachricht', keySearch: 'durchsucht die Chats', keyNew: 'beginnt einen Chat', keyChats: 'zeigt oder verbirgt die Liste der Chats',
  keyEngine: 'wechselt zwischen Chat und Engine', keyVersions: 'zeigen andere Fassungen einer Nachricht', keyKeys: 'zeigt diese Liste',

  alternatives: 'Alternativen', alternativesOf: (text) => `zu „${text}“: eine wählen, um von dort weiterzuschreiben`, alternativesTable: 'Alternativen mit ihren Aussichten', answer: 'Antwort', cacheLine: 'Hier endete der Teil aus dem Cache', cacheLineWords: 'aus dem Cache ▲ ▼ berechnet', chance: 'Aussicht', colorBy: 'Färben nach', firstOfAll: 'erstes Token', promptHeading: 'Prompt',
  answerFacts: (num, { queueMs, slot }) => `${tokens(num)}${slot === undefined ? '' : `, Slot ${slot}`}${queueMs === undefined ? '' : `, wartete ${ms(queueMs)}`}`,
  color_probability: 'Wahrscheinlichkeit', color_entropy: 'Entropie', color_step: 'Schritt', color_drafted: 'entworfen', lab_topK: 'Top k', lab_topP: 'Top p', lab_minP: 'Min p',
  madeIn: (step, slot, isDrafted) => `Aus Schritt ${step}${slot === undefined ? '' : `, Slot ${slot}`}${isDrafted ? '; es war entworfen' : ''}.`, scoring: 'Der Server bewertet die Antwort …', showStep: 'Den Schritt zeigen', token: 'Token', tokens: 'Token', withSettings: 'Mit diesen Einstellungen',
  promptFacts: (num, cached, from) => {
    const parts = from ? [['Pool', from.pool], ['Speicher', from.memory], ['Platte', from.disk]].filter(([, each]) => each) : [];
    return `${tokens(num)}, ${number(cached)} aus dem Cache${parts.length ? ` (${parts.map(([name, each]) => `${name} ${number(each)}`).join(', ')})` : ''}`;
  },

  asTable: 'Als Tabelle', besideChat: 'Neben dem Chat', goOnTime: 'Weiter', healthTable: 'Modelle', health: (state) => HEALTH[state] ?? state, live: '(live)', lookingAtEngine: 'Sieht nach dem Modell …', momentOfLast: 'Zeitpunkt der letzten Minuten', now: 'jetzt', numRestarts: (num) => (num ? count(num, 'Neustart', 'Neustarts') : ''), pause: 'Pause', restarts: 'Neustarts', saveJson: 'JSON speichern', saveTrace: 'Trace speichern',
  timeGroup: 'Zeit', running: 'laufen', waiting: 'warten', pausedCount: 'angehalten', speedWritten: 'Token/s geschrieben', speedPrompts: 'Token/s gelesen', poolShare: 'Pool', memory: 'im Speicher', disk: 'auf der Platte', slotsHold: (num, all) => `Sequenzen: ${num} von ${all} Slots halten Token`,
  explain: (name) => `Erklärung: ${name}`, readOn: (page) => `Mehr in ${page}.`, name_now: 'jetzt', name_pool: 'Pool', name_steps: 'Schritte', name_sequences: 'Sequenzen', name_tiers: 'Stufen', name_moments: 'Momente', name_demos: 'Vorführungen',
  explain_now: 'Laufende Anfragen haben an jedem Schritt teil. Wartende noch an keinem, weil alle Plätze oder der ganze KV-Pool belegt sind. Token pro Sekunde sind die der letzten drei Sekunden.',
  explain_pool: 'Der KV-Cache behält, was das Modell für jedes Token berechnet hat. Die Breite ist hier die Größe in Token. Anfragen mit gleichem Anfang teilen ihn: Der Anfang ist ein Block, und was sich unterscheidet, steht darunter. Was beendete Unterhaltungen hinterlassen haben, ist blass, bleibt für die nächste Runde und geht, wenn jemand den Platz braucht.',
  explain_steps: 'Die Engine rechnet in Schritten. In jedem bekommt jede laufende Anfrage ihr nächstes Token, und Prompts werden daneben in Portionen berechnet. Die Höhe eines Balkens ist die Zeit eines Schritts, die Farbe sein Zweck.',
  explain_sequences: 'Eine Anfrage wartet, dann wird ihr Prompt berechnet, dann schreibt sie: ein Token je Schritt, mehr, wenn Entwürfe zutreffen. Der Teil eines Prompts, der im Cache war, wurde nicht noch einmal berechnet.',
  explain_tiers: 'Was den Pool verlässt, kann im Speicher oder auf der Platte bleiben und zurückkommen; das geht schneller, als es neu zu berechnen.', explain_moments: 'Was geschehen ist: Ankünfte, erste Token, Enden, was den Pool verlassen musste, und Modelle, die geladen oder entladen wurden.',
  explain_demos: 'Der erste Knopf zeigt den Präfix-Cache: Acht Prompts fangen gleich an, und der Anfang wird einmal berechnet. Der zweite zeigt Fairness: Ein langer Prompt wird in Portionen berechnet, so dass der Strom daneben nicht stockt.',

  pool: 'KV-Pool', poolOf: (replica) => `KV-Pool der Replik ${replica}`, poolUse: (part, capacity, drawn) => `${part} von ${tokens(capacity)}${drawn ? `, gezeichnet bis ${number(drawn)}` : ''}`, poolWords: (title, held, capacity, retained) => `${title}: ${number(held)} von ${tokens(capacity)} belegt, ${number(retained)} davon von beendeten Unterhaltungen`,
  poolHint: 'Ein Klick auf einen Block zeigt seinen Text.', poolTable: 'Knoten des Präfixbaums', keyRunning: 'läuft', keyRetained: 'beendet, darf gehen', keyPromised: 'diesem Schritt versprochen', keyFree: 'frei', finished: 'beendet', inMemory: 'Im Speicher', onDisk: 'Auf der Platte', partOf: (part, whole) => `${part} von ${whole}`,
  node: 'Knoten', below: 'Unter', tokensColumn: 'Token', sharedBy: 'Geteilt von', slots: 'Slots', leaves: 'Geht', nth: (at) => `${at}.`, smallParts: 'kleine Teile', readNode: (id) => `Knoten ${id} lesen`,
  nodeWords: (node, leaves) => `${tokens(node.n)}${node.num_slots > 1 ? `, geteilt von ${node.num_slots}` : ''}, ${node.running ? 'läuft' : 'beendet'}${node.slots.length ? `, Slot ${node.slots.join(', ')}` : ''}${leaves < Infinity ? `, geht als Nummer ${leaves}` : ''}${node.id > 0 ? '' : ' (kleine Teile zusammengezählt)'}`,
  nodeText: (begin, end, num, text) => `Token ${number(begin)} bis ${number(end)}${num ? `, die ersten ${number(num)} davon` : ''}: ${text}`,

  steps: 'Schritte', stepsHint: 'Auf einen Balken zeigen, um zu sehen, wofür der Schritt war.', stepsSaid: (time, num, mean, most) => `letzte ${time} s: ${number(num)}, im Mittel ${mean} ms, höchstens ${most} ms`, stepsWords: (num, time, most) => `${number(num)} Schritte in den letzten ${time} Sekunden, der langsamste ${most} Millisekunden`, stepsTable: 'Die neuesten Schritte',
  step_decode: 'Schreiben', step_prompt: 'Prompt', step_kept: 'Entwurf behalten', step_thrown: 'Entwurf verworfen', step_sample: 'Auswahl', step_plan: 'Planung', step_forward: 'Rechnung', step: 'Schritt', time: 'Zeit', ms: 'ms', requests: 'Anfragen', memberOf: (slot, id, num) => `Slot ${slot}${id ? ` (${id.slice(0, 18)})` : ''}: ${num}`,
  stepWords: (step) => `Schritt ${number(step.id)}: ${ms(step.ms)} (Rechnung ${ms(step.forward)}, Auswahl ${ms(step.sample)}), geplant in ${ms(step.plan)}. ${number(step.decodes)} geschrieben, ${count(step.prompt, 'Prompt-Token', 'Prompt-Token')}${step.drafted ? `, ${step.kept} von ${step.drafted} entworfenen behalten` : ''}${step.restored ? `, ${number(step.restored)} zurückgeholt` : ''}. ${step.who}`,

  sequences: 'Sequenzen', numAlive: (num) => (num ? `${number(num)} am Leben` : 'keine Anfrage lebt'), noneAlive: 'Senden Sie eine Nachricht, oder versuchen Sie eine Vorführung unten.', sequencesTable: 'Anfragen, die leben', request: 'Anfrage', slot: 'Slot', age: 'Alter', promptColumn: 'Prompt', cachedColumn: 'Aus dem Cache', written: 'Geschrieben', draftsKeptColumn: 'Entwürfe behalten', preempted: 'Verdrängt',
  anotherClient: 'ein anderer Client', fromPool: (num) => `${number(num)} Pool`, fromMemory: (num) => `${number(num)} Speicher`, fromDisk: (num) => `${number(num)} Platte`, willComeFromDisk: (num) => `${number(num)} kommen von der Platte`, numAdapters: (num) => `${number(num)} Adapter`, seconds: (value) => `${value} s`, yourChat: (title) => `Sie · ${title}`,
  seq_queued: 'wartet', seq_restoring: 'wird geholt', seq_prompt: 'Prompt', seq_decode: 'schreibt', seq_paused: 'angehalten',

  cache: 'Cache', cacheAndDrafts: 'Cache und Entwürfe', sinceStart: 'seit dem Start', promptsCached: 'Prompt-Token aus dem Cache', cachedShare: (part, all, share) => `${number(part)} von ${number(all)} (${share})`, foundInPool: 'Im Pool gefunden', restoredMemory: 'Aus dem Speicher geholt', restoredDisk: 'Von der Platte geholt', evictedFromPool: 'Aus dem Pool entfernt',
  preemptions: 'Verdrängungen', draftsKeptTotal: 'Entwürfe behalten', noneDrafted: 'keine entworfen', moments: 'Momente', nothingHappened: 'Seit die Seite zusieht, ist nichts geschehen.',
  momentCount: (kind, num, part) => (part !== undefined && part !== null ? `${Math.round(100 * part)} %` : !num ? '' : kind === 'preempted' ? count(num, 'Anfrage', 'Anfragen') : tokens(num)),
  kind_arrived: 'angekommen', kind_begun: 'begonnen', kind_first: 'erstes Token', kind_finished: 'fertig', kind_ended: 'beendet', kind_evicted: 'entfernt', kind_preempted: 'verdrängt', kind_paused: 'angehalten', kind_resumed: 'fortgesetzt', kind_loading: 'lädt', kind_loaded: 'geladen', kind_unloaded: 'entladen', kind_removed: 'weg', kind_crashed: 'abgestürzt', kind_restarted: 'neu gestartet',

  demonstration: 'Vorführung', tryIt: 'Ausprobieren', demoShared: (num) => `${num} Prompts mit gleichem Anfang senden`, demoSharedRuns: (num) => `${num} Prompts mit gleichem Anfang sind unterwegs …`, demoSharedEnd: (num, total, cached) => `${count(num, 'Antwort', 'Antworten')}. Von ${number(total)} Prompt-Token kamen ${number(cached)} aus dem Cache.`,
  demoLong: 'Einen langen Prompt neben einem Strom senden', demoLongRuns: 'Ein Strom wird geschrieben; ein langer Prompt kommt daneben …', demoTooShort: 'Der Strom endete, bevor der lange Prompt gesendet wurde.', demoLongEnd: (prompt, usual, longest) => `Während ${tokens(prompt)} eines Prompts berechnet wurden, ging der Strom weiter: ${ms(usual)} zwischen zwei Token, höchstens ${ms(longest)}.`,
};

const HEALTH = { starting: 'beim Starten', ready: 'bereit', restarting: 'beim Neustart', stalled: 'ins Stocken geraten', failed: 'gescheitert', closed: 'geschlossen' };
