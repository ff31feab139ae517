// Reads all messages in the store and answers with the conversations that have the words. It never writes.
addEventListener('message', ({ data: words }) => {
  const request = indexedDB.open('stoker');
  request.onerror = () => postMessage({ words, ids: [] });
  request.onsuccess = () => search(request.result, words);
});

function search(db, words) {
  const found = new Set();
  const cursor = db.transaction('messages').objectStore('messages').openCursor();
  cursor.onsuccess = () => {
    const row = cursor.result;
    if (!row) {
      postMessage({ words, ids: [...found] });
      db.close();
      return;
    }
    const { chat, content } = row.value;
    const isFound = !found.has(chat) && content.toLowerCase().includes(words);
    if (isFound) found.add(chat);
    if (found.has(chat)) row.continue([chat, []]); // behind all keys of this conversation
    else row.continue();
  };
  cursor.onerror = () => postMessage({ words, ids: [...found] });
}
