import type { Conversation, Message } from './message.ts'

/**
 * What happens to one message.
 *
 * - `lost`: this message and all later ones of its direction vanish. The connection is reset some time after the
 *   client's deadline, as by a keep-alive.
 * - `late`: it is held back until after the client's deadline, and with it all that follows it in its direction.
 * - `overtaken`: it is held back until another client was granted a lease, also if the sender has gone meanwhile.
 * - `cut-before`, `cut-after`: the connection ends before or after it.
 * - `reconnected`: the client's connection is reset, and the request reaches the server a moment after the next
 *   connection of the client has opened.
 * - `twice`: the client's connection is reset, so that the client sends the request again, and the first copy reaches
 *   the server after another client was granted a lease.
 * - any other word is an error of the server. It answers a request that is not delivered, or replaces a reply.
 */
export type Fault = string

const NETWORK_FAULTS = ['lost', 'late', 'overtaken', 'cut-before', 'cut-after'] as const

/** `count` is the number of the message. It selects the error in place of a reply: one is enough there. */
export function faultsFor(conversation: Conversation, message: Message, count = 0): Fault[] {
  const errors = conversation.errorsFor(message)
  if (message.kind === 'request') return [...NETWORK_FAULTS, 'reconnected', 'twice', ...errors]
  const error = errors[count % errors.length]
  return error === undefined ? [...NETWORK_FAULTS] : [...NETWORK_FAULTS, error]
}

/** Which message is meant: `a0.1q3` is the third request of client a in its connection 1 to server 0; r is a reply. */
export interface Place {
  readonly client: string
  readonly server: number
  readonly connection: number
  readonly direction: 'q' | 'r'
}

export const placeText = ({ client, server, connection, direction }: Place, count: number): string =>
  `${client}${server}.${connection}${direction}${count}`
