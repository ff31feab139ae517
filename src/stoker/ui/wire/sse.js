// Server-sent events from the body of a reply. It knows no API.

/** The decoded data of each event, with the event's name. It ends with the stream, or at `[DONE]`.
 * @param {ReadableStream<Uint8Array>} body */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop() ?? '';
      for (const part of parts) {
        const data = field(part, 'data:');
        if (data === '[DONE]') return;
        if (data) yield { name: field(part, 'event:'), data: JSON.parse(data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function field(part, name) {
  const lines = part.split(/\r?\n/).filter((line) => line.startsWith(name));
  return lines.map((line) => line.slice(name.length).trimStart()).join('\n');
}
