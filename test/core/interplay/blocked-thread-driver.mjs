// @ts-check
/** A driver whose first renewal blocks its thread, as a call of a local store or a debugger does. */
export async function openBlocked() {
  const never = () => new Promise(() => {})
  const renew = () => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60_000)
    return never()
  }
  const capabilities = { expiry: 'ttl', queue: false, wake: false }
  return { name: 'blocked', capabilities, acquire: never, renew, release: never, inspect: never, close: async () => {} }
}
