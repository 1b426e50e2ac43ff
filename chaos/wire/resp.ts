import { type Conversation, type Message, Rest } from './message.ts'

/** Redis, RESP2 and RESP3. Each command has one reply. Pushes and messages of subscriptions are events. */
export function respConversation(): Conversation {
  const requests = new Rest()
  const replies = new Rest()
  const split = (rest: Rest, chunk: Buffer, describe: (bytes: Buffer) => Message): Message[] => {
    const messages: Message[] = []
    rest.push(chunk, (bytes) => {
      const end = endOfValue(bytes, 0)
      if (end !== undefined) messages.push(describe(Buffer.from(bytes.subarray(0, end))))
      return end
    })
    return messages
  }
  return {
    fromClient: (chunk) => split(requests, chunk, request),
    fromServer: (chunk) => split(replies, chunk, reply),
    errorsFor({ kind, label }) {
      if (kind === 'event') return []
      if (kind === 'reply') return label.startsWith('-') ? [] : WRITE_ERRORS
      const [command = ''] = label.split(' ')
      if (command === 'EVALSHA') return [...WRITE_ERRORS, 'NOSCRIPT']
      if (WRITES.has(command)) return WRITE_ERRORS
      return ['LOADING']
    },
    errorReply: (code) => ({ bytes: Buffer.from(`-${code} ${ERROR_TEXTS[code] ?? 'injected'}\r\n`), isFatal: false }),
  }
}

const WRITE_ERRORS = ['READONLY', 'NOREPLICAS', 'OOM'] as const
const WRITES = new Set(['EVAL', 'SET', 'DEL', 'PUBLISH', 'WAIT'])
const ERROR_TEXTS: Readonly<Record<string, string>> = {
  READONLY: "You can't write against a read only replica.",
  NOREPLICAS: 'Not enough good replicas to write.',
  OOM: "command not allowed when used memory > 'maxmemory'.",
  NOSCRIPT: 'No matching script. Please use EVAL.',
  LOADING: 'Redis is loading the dataset in memory',
}

function request(bytes: Buffer): Message {
  const words = bytes.toString('latin1').split('\r\n')
  const command = (words[2] ?? words[0] ?? '').toUpperCase()
  const hasName = command === 'SUBSCRIBE' || command === 'SSUBSCRIBE' || command === 'CLIENT'
  return { bytes, kind: 'request', label: hasName ? `${command} ${words[4] ?? ''}` : command }
}

/** The words that begin a message of a subscription. RESP2 sends it as an array, RESP3 as a push. */
const EVENTS = new Set(['message', 'pmessage', 'smessage', 'invalidate'])

function reply(bytes: Buffer): Message {
  const text = bytes.toString('latin1', 0, 200)
  const words = text.split('\r\n')
  const isList = text.startsWith('*') || text.startsWith('>')
  const isEvent = isList && EVENTS.has(words[2] ?? '')
  const label = (isEvent ? words[2] : words.slice(0, isList ? 3 : 2).join(' ')) ?? ''
  return { bytes, kind: isEvent ? 'event' : 'reply', label: label.replaceAll(/[^ -~]/g, '?').slice(0, 40) }
}

/** Where the value at `at` ends. Undefined if it is not complete. */
function endOfValue(bytes: Buffer, at: number): number | undefined {
  const lineEnd = bytes.indexOf('\r\n', at)
  if (lineEnd < 0) return undefined
  const next = lineEnd + 2
  const length = () => Number(bytes.toString('latin1', at + 1, lineEnd))
  switch (String.fromCharCode(bytes[at] ?? 0)) {
    case '$':
    case '=':
    case '!': {
      const end = length() < 0 ? next : next + length() + 2
      return bytes.length < end ? undefined : end
    }
    case '*':
    case '~':
    case '>':
      return endOfValues(bytes, next, length())
    case '%':
      return endOfValues(bytes, next, length() * 2)
    case '|':
      // Attributes belong to the value after them.
      return endOfValues(bytes, next, length() * 2 + 1)
    default:
      return next
  }
}

function endOfValues(bytes: Buffer, from: number, count: number): number | undefined {
  let at: number | undefined = from
  for (let left = count; left > 0 && at !== undefined; left -= 1) at = endOfValue(bytes, at)
  return at
}
