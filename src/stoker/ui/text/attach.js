// Files that are attached to a message: texts as they are, images scaled down.

const MAX_TEXT_BYTES = 1 << 20;
const MAX_SIDE_PX = 2048;

/** Gives attachments, and in words what could not be attached.
 * @param {Iterable<File>} files @param {boolean} takesImages the model sees them */
export async function attach(files, takesImages) {
  const found = [];
  const refused = [];
  for (const file of files) {
    if (file.type.startsWith('image/')) {
      if (!takesImages) refused.push(`${file.name}: this model takes no images.`);
      else await scaled(file).then((url) => found.push({ name: file.name, url }), () => refused.push(`${file.name} is no image that the browser can read.`));
    } else if (file.size > MAX_TEXT_BYTES) refused.push(`${file.name} is larger than 1 MB.`);
    else {
      const text = await file.text();
      if (text.includes('\u0000')) refused.push(`${file.name} is no text.`);
      else found.push({ name: file.name, text });
    }
  }
  return { found, refused: refused.join(' ') };
}

async function scaled(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(image.width, image.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas.toDataURL(file.type === 'image/png' ? 'image/png' : 'image/jpeg', 0.9);
}
