// What the modules of the page speak of, and interfaces of browsers that TypeScript does not know.

/** A message of a conversation. Those that are being written change with every frame. */
interface Message {
  id: string;
  parent: string;
  role: string;
  content: string;
  reasoning?: string;
  model?: string;
  /** Answers to one message that stand side by side have the same one. */
  fan?: string;
  finish?: string;
  error?: string;
  attachments?: { name: string; url?: string; text?: string; kind?: string }[];
  tool_calls?: any[];
  tool_call_id?: string;
  name?: string;
  stats?: Record<string, number>;
  trace?: any;
  [field: string]: any;
}

interface Chat {
  id: string;
  title: string;
  updated: number;
  system: string;
  sampling: Record<string, any>;
  adapters?: Record<string, number>;
  model: string;
  tools: string;
  thinking?: string;
  nodes: Record<string, Message>;
  leaf: string;
}

/** An entry of `/v1/models`. */
interface ServedModel {
  id: string;
  aliases?: string[];
  parent?: string;
  max_model_len?: number;
  capabilities?: string[];
  status?: any;
  meta?: any;
}

type Sig<T> = import('./vendor/preact.js').Signal<T>;
type ReadSig<T> = import('./vendor/preact.js').ReadonlySignal<T>;

interface Window { trustedTypes?: { createPolicy(name: string, rules: { createScriptURL: (name: string) => string }): { createScriptURL(name: string): any } } }
declare var trustedTypes: Window['trustedTypes'];
