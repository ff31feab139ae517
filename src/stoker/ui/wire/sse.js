// The data of server-sent events, from the body of a reply. It knows no API.

/** @param {ReadableStream<Uint8Array>} body */
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
        const data = dataOf(part);
        if (data === '[DONE]') return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(part) {
  return part.split(/\r?\n/).filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart()).join('\n');
}
