/** A new id. `crypto.randomUUID` is missing on plain HTTP in a LAN. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
