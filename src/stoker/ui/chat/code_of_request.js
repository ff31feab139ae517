// The request for the next message of a conversation, as text: JSON, curl and Python. None of them has the key in it.
import { modelOf } from '../state/server.js';
import { requestOf } from './request.js';

const LONG_DATA = /"data:[^"]{200,}"/g;
const url = () => String(new URL('v1/chat/completions', document.baseURI));

function bodyOf(chat) {
  try {
    return requestOf(chat, chat.nodes[chat.leaf] ?? { id: '', parent: '' }, modelOf(chat));
  } catch {
    return requestOf({ ...chat, tools: '' }, chat.nodes[chat.leaf] ?? { id: '', parent: '' }, modelOf(chat)); // tools that are still being written
  }
}

/** For reading: files are cut short. */
export const json = (chat) => JSON.stringify(bodyOf(chat), null, 2).replace(LONG_DATA, (data) => `${data.slice(0, 60)} …"`);

export function curl(chat) {
  const body = JSON.stringify(bodyOf(chat), null, 2).replaceAll("'", "'\\''");
  return `curl ${url()} -H 'Content-Type: application/json' -d '${body}'`;
}

/** A string of JSON is one of Python too. */
export function python(chat) {
  const body = JSON.stringify(JSON.stringify(bodyOf(chat)));
  return `import json, urllib.request\n\nbody = ${body}\nheaders = {"Content-Type": "application/json"}\nrequest = urllib.request.Request("${url()}", body.encode(), headers)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])\n`;
}
