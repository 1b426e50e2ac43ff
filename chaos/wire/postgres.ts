import { framed } from '../../test/harness/wire.ts'
import { type Conversation, type Message, Rest } from './message.ts'

/**
 * The protocol of PostgreSQL, version 3. A request is all that the client sends up to a Sync, a Flush or a simple
 * query: the server answers it as a whole. A reply is all up to ReadyForQuery, or up to what a Flush asks for.
 * A notification is an event.
 */
export function postgresConversation(): Conversation {
  const [requests, replies] = [new Rest(), new Rest()]
  let isStarting = true
  let expectsTlsAnswer = false
  let flushes = 0
  let transaction = 'I'
  let asked: Part[] = []
  let answered: Part[] = []

  const endRequest = (): Message => {
    const message = joined(asked, 'request')
    asked = []
    return message
  }
  const endReply = (): Message => {
    const message = joined(answered, 'reply')
    answered = []
    return message
  }
  return {
    fromClient(chunk) {
      const messages: Message[] = []
      requests.push(chunk, (bytes) => {
        if (isStarting) {
          if (bytes.length < 8) return undefined
          const end = bytes.readInt32BE(0)
          if (bytes.length < end) return undefined
          const code = bytes.readInt32BE(4)
          expectsTlsAnswer = code === TLS_REQUEST || code === GSS_REQUEST
          isStarting = expectsTlsAnswer
          asked.push({ type: START_UPS[code] ?? 'startup', bytes: Buffer.from(bytes.subarray(0, end)) })
          messages.push(endRequest())
          return end
        }
        const part = typedPart(bytes)
        if (part === undefined) return undefined
        asked.push(part)
        if (part.type === 'H') flushes += 1
        if (REQUEST_ENDS.has(part.type)) messages.push(endRequest())
        return part.bytes.length
      })
      return messages
    },
    fromServer(chunk) {
      const messages: Message[] = []
      replies.push(chunk, (bytes) => {
        if (expectsTlsAnswer) {
          expectsTlsAnswer = false
          answered.push({ type: 'tls', bytes: Buffer.from(bytes.subarray(0, 1)) })
          messages.push(endReply())
          return 1
        }
        const part = typedPart(bytes)
        if (part === undefined) return undefined
        if (part.type === 'A') {
          messages.push({ bytes: part.bytes, kind: 'event', label: 'notification' })
          return part.bytes.length
        }
        answered.push(part)
        if (part.type === 'Z') {
          transaction = String.fromCharCode(part.bytes[5] ?? 0)
          messages.push(endReply())
        } else if (flushes > 0 && FLUSH_ENDS.has(part.type)) {
          flushes -= 1
          messages.push(endReply())
        }
        return part.bytes.length
      })
      return messages
    },
    errorsFor({ kind, label }) {
      if (kind === 'event' || label === 'X' || label.startsWith('E')) return []
      if (label === 'startup') return ['53300']
      return label.startsWith('tls') || label === 'cancel' || label.startsWith('R') ? [] : QUERY_ERRORS
    },
    errorReply(code, { label }) {
      const isFatal = code === '57P01' || code === '53300'
      const error = errorPart(code, isFatal ? 'FATAL' : 'ERROR')
      // After an error, a Flush is answered by nothing more until the client sends a Sync.
      const [types = ''] = label.split(' ')
      const waitsForSync = types.endsWith('H') || FLUSH_ENDS.has(types.at(-1) ?? '')
      if (isFatal || waitsForSync) return { bytes: error, isFatal }
      return { bytes: Buffer.concat([error, framed('Z', Buffer.from(transaction === 'I' ? 'I' : 'E'))]), isFatal }
    },
  }
}

interface Part {
  type: string
  bytes: Buffer
}

const TLS_REQUEST = 80_877_103
const GSS_REQUEST = 80_877_104
const START_UPS: Readonly<Record<number, string>> = { [TLS_REQUEST]: 'tls?', [GSS_REQUEST]: 'gss?', 80877102: 'cancel' }
/** Sync, Query, Terminate, Flush, and what a password exchange or a COPY sends. */
const REQUEST_ENDS = new Set(['S', 'Q', 'X', 'H', 'p', 'c', 'f'])
/** RowDescription, NoData and ErrorResponse end the answer to Parse, Describe and Flush. */
const FLUSH_ENDS = new Set(['T', 'n', 'E'])
const QUERY_ERRORS = ['40001', '55P03', '57P01'] as const
const ERROR_TEXTS: Readonly<Record<string, string>> = {
  '40001': 'could not serialize access due to concurrent update',
  '55P03': 'canceling statement due to lock timeout',
  '57P01': 'terminating connection due to administrator command',
  '53300': 'sorry, too many clients already',
}

function typedPart(bytes: Buffer): Part | undefined {
  if (bytes.length < 5) return undefined
  const end = 1 + bytes.readInt32BE(1)
  if (bytes.length < end) return undefined
  return { type: String.fromCharCode(bytes[0] ?? 0), bytes: Buffer.from(bytes.subarray(0, end)) }
}

function joined(parts: readonly Part[], kind: 'request' | 'reply'): Message {
  const types = parts.map(({ type }) => type).join('')
  const text = kind === 'request' ? sqlOf(parts) : ''
  return {
    bytes: Buffer.concat(parts.map(({ bytes }) => bytes)),
    kind,
    label: `${types.replaceAll(/(.)\1+/g, '$1')}${text && ` ${text}`}`,
  }
}

/** The beginning of the statement, or the name of a prepared one. */
function sqlOf(parts: readonly Part[]): string {
  const part = parts.find(({ type }) => type === 'Q' || type === 'P' || type === 'B')
  const text = part?.bytes.toString('latin1', 5).replaceAll(/[^ -~]+/g, ' ') ?? ''
  return text.trim().slice(0, 40)
}

function errorPart(code: string, severity: string): Buffer {
  const fields = [`S${severity}`, `V${severity}`, `C${code}`, `M${ERROR_TEXTS[code] ?? 'injected'}`, '']
  return framed('E', Buffer.from(`${fields.join('\0')}\0`))
}
