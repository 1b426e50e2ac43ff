import { InvalidArgumentError } from '../../core/errors.ts'

const OCCUPIED: unique symbol = Symbol.for('holdfast.postgres-advisory.occupied')

/**
 * The clients that a driver uses. A connection has one session, and the server grants a session a lock that it already
 * has. So two drivers on one `Client` would both hold one name, and so would a driver and a transaction. The set is
 * global, because a program may have loaded two copies of this package.
 */
const everywhere = globalThis as { [OCCUPIED]?: WeakSet<object> }
everywhere[OCCUPIED] ??= new WeakSet()
const occupied = everywhere[OCCUPIED]

/** Returns a function that frees the client again. */
export function occupy(client: object): () => void {
  if (isOccupied(client)) {
    const rule = 'a Client without another postgres-advisory driver. Close that one first, share it, or pass in a Pool'
    throw new InvalidArgumentError('client', client, rule)
  }
  occupied.add(client)
  return () => occupied.delete(client)
}

export const isOccupied = (client: unknown): boolean =>
  typeof client === 'object' && client !== null && occupied.has(client)
