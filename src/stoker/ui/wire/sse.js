// Server-sent events, or lines of JSON, from the body of a reply. It knows no API.

/** The decoded data of each event, with the event's name. It ends with the stream, or at `[DONE]`.
 * @param {ReadableStream<any> | null} body */
export async function* events(body) {
  for await (const part of parts(body, /\r?\n\r?\n/)) {
    const data = field(part, 'data:');
    if (data === '[DONE]') return;
    if (data) yield { name: field(part, 'event:'), data: JSON.parse(data) };
  }
}

/** The value on each line.
 * @param {ReadableStream<any> | null} body */
export async function* lines(body) {
  for await (const line of parts(body, /\r?\n/)) if (line) yield JSON.parse(line);
}

async function* parts(body, separator) {
  if (body === null) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const complete = (rest + value).split(separator);
      rest = complete.pop() ?? '';
      yield* complete;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function field(part, name) {
  const lines = part.split(/\r?\n/).filter((line) => line.startsWith(name));
  return lines.map((line) => line.slice(name.length).trimStart()).join('\n');
}
