// Conversations in IndexedDB. Where the browser offers no storage, they live as long as the page.
const NAME = 'stoker';
const STORE = 'chats';

const opened = new Promise((resolve) => {
  try {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: 'id' });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
  } catch {
    resolve(null);
  }
});

export const allChats = () => ask('readonly', (store) => store.getAll(), []);
export const storedChat = (id) => ask('readonly', (store) => store.get(id), undefined);
export const putChat = (chat) => ask('readwrite', (store) => store.put(chat), undefined);
export const deleteChat = (id) => ask('readwrite', (store) => store.delete(id), undefined);

async function ask(mode, action, otherwise) {
  const db = await opened;
  if (db === null) return otherwise;
  return new Promise((resolve, reject) => {
    const request = action(db.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
