// Files that are attached to a message: texts as they are, images scaled down, recordings and PDF files whole.

import { t } from '../locale/index.js';

const MAX_TEXT_BYTES = 1 << 20;
const MAX_WHOLE_BYTES = 20 << 20;
const MAX_SIDE_PX = 2048;

/** Gives attachments, and in words what could not be attached.
 * @param {Iterable<File>} files @param {{vision?: boolean, audio?: boolean}} modalities what the model takes beside text */
export async function attach(files, modalities) {
  const found = [];
  const refused = [];
  for (const file of files) {
    try {
      found.push({ name: file.name, ...await read(file, modalities) });
    } catch (error) {
      refused.push(t(error.message, file.name));
    }
  }
  return { found, refused: refused.join(' ') };
}

/** What is kept of a file. The message of an error is the key of the words that say why it cannot be attached.
 * @param {File} file @param {{vision?: boolean, audio?: boolean}} modalities */
async function read(file, { vision, audio }) {
  if (file.type.startsWith('image/')) {
    if (!vision) throw new Error('noImages');
    return { url: await scaled(file).catch(() => { throw new Error('notAnImage'); }) };
  }
  if (file.type.startsWith('audio/')) {
    if (!audio) throw new Error('noRecordings');
    return { kind: 'audio', url: await whole(file) };
  }
  if (file.type === 'application/pdf') return { kind: 'pdf', url: await whole(file) };
  if (file.size > MAX_TEXT_BYTES) throw new Error('largerThan1');
  const text = await file.text();
  if (text.includes('\u0000')) throw new Error('notAText');
  return { text };
}

/** The file as a `data:` URL. */
function whole(file) {
  if (file.size > MAX_WHOLE_BYTES) throw new Error('largerThan20');
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error('cannotBeRead'));
    reader.readAsDataURL(file);
  });
}

async function scaled(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(image.width, image.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext('2d')?.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas.toDataURL(file.type === 'image/png' ? 'image/png' : 'image/jpeg', 0.9);
}
