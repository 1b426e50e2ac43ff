import { connect } from 'node:net'

/**
 * Minimal clients, so that the harness needs no database client and can tell a broken client from a broken server.
 * Each request has its own connection and a deadline.
 */
export interface Address {
  port: number
  host?: string
  timeoutMs?: number
}

export type RedisReply = string | number | null | RedisReply[]

/** Sends one command. Rejects on an error reply, a closed connection or a missed deadline. */
export function askRedis(address: Address, ...command: (string | number)[]): Promise<RedisReply> {
  const words = command.map(String)
  const request = `*${words.length}\r\n${words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`).join('')}`
  return converse(address, Buffer.from(request), (received) => {
    const reply = parseRedisReply(received, 0)
    if (reply?.value instanceof Error) throw reply.value
    return reply && { answer: reply.value }
  })
}

export type PostgresRow = (string | null)[]

/** Runs one statement with the simple protocol, and returns its rows as text. The server must need no password. */
export function askPostgres(address: Address & { database?: string }, sql: string): Promise<PostgresRow[]> {
  const { database = 'postgres' } = address
  const startup = Buffer.from(`\0\x03\0\0user\0postgres\0database\0${database}\0\0`)
  const request = Buffer.concat([framed('', startup), framed('Q', Buffer.from(`${sql}\0`))])
  return converse(address, request, (received) => {
    const rows: PostgresRow[] = []
    let readyCount = 0
    for (const { type, body } of postgresMessages(received)) {
      if (type === 'E') throw new Error(postgresErrorText(body))
      if (type === 'D') rows.push(parsePostgresRow(body))
      // The first one ends the start-up, the second one the statement.
      if (type === 'Z' && ++readyCount === 2) return { answer: rows }
    }
    return undefined
  })
}

function converse<T>(
  { port, host = '127.0.0.1', timeoutMs = 2_000 }: Address,
  request: Buffer,
  parse: (received: Buffer) => { answer: T } | undefined,
): Promise<T> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, host)
    let received: Buffer = Buffer.alloc(0)
    const deadline = setTimeout(() => fail(new Error(`${host}:${port} gave no answer in ${timeoutMs} ms`)), timeoutMs)
    const fail = (error: Error) => {
      clearTimeout(deadline)
      socket.destroy()
      reject(error)
    }
    socket.on('error', fail)
    socket.on('close', () => fail(new Error(`${host}:${port} closed the connection before it answered`)))
    socket.on('connect', () => socket.write(request))
    socket.on('data', (chunk) => {
      received = Buffer.concat([received, chunk])
      try {
        const parsed = parse(received)
        if (parsed === undefined) return
        clearTimeout(deadline)
        resolve(parsed.answer)
        socket.destroy()
      } catch (error) {
        fail(error as Error) // The parsers throw nothing but Error.
      }
    })
  })
}

interface Parsed {
  value: RedisReply | Error
  next: number
}

function parseRedisReply(buffer: Buffer, at: number): Parsed | undefined {
  const lineEnd = buffer.indexOf('\r\n', at)
  if (lineEnd < 0) return undefined
  const line = buffer.toString('utf8', at + 1, lineEnd)
  const next = lineEnd + 2
  switch (String.fromCharCode(buffer[at] ?? 0)) {
    case '+':
      return { value: line, next }
    case '-':
      return { value: new Error(line), next }
    case ':':
      return { value: Number(line), next }
    case '$': {
      const length = Number(line)
      if (length < 0) return { value: null, next }
      if (buffer.length < next + length + 2) return undefined
      return { value: buffer.toString('utf8', next, next + length), next: next + length + 2 }
    }
    case '*':
      return parseRedisArray(buffer, next, Number(line))
    default:
      throw new Error(`not a Redis reply: ${buffer.toString('latin1', at, at + 40)}`)
  }
}

function parseRedisArray(buffer: Buffer, at: number, length: number): Parsed | undefined {
  if (length < 0) return { value: null, next: at }
  const items: RedisReply[] = []
  let next = at
  while (items.length < length) {
    const item = parseRedisReply(buffer, next)
    if (item === undefined) return undefined
    items.push(item.value instanceof Error ? item.value.message : item.value)
    next = item.next
  }
  return { value: items, next }
}

/** A message of PostgreSQL's protocol. Without a type: the first message of a connection. */
export function framed(type: string, body: Buffer): Buffer {
  const head = Buffer.alloc(type.length + 4)
  head.write(type, 'latin1')
  head.writeInt32BE(body.length + 4, type.length)
  return Buffer.concat([head, body])
}

function* postgresMessages(buffer: Buffer): Generator<{ type: string; body: Buffer }> {
  let at = 0
  while (buffer.length >= at + 5) {
    const end = at + 1 + buffer.readInt32BE(at + 1)
    if (buffer.length < end) return
    yield { type: String.fromCharCode(buffer[at] ?? 0), body: buffer.subarray(at + 5, end) }
    at = end
  }
}

function parsePostgresRow(body: Buffer): PostgresRow {
  let at = 2
  return Array.from({ length: body.readInt16BE(0) }, () => {
    const length = body.readInt32BE(at)
    at += 4
    if (length < 0) return null
    at += length
    return body.toString('utf8', at - length, at)
  })
}

function postgresErrorText(body: Buffer): string {
  const fields = body.toString('utf8').split('\0')
  const field = (letter: string) => fields.find((each) => each.startsWith(letter))?.slice(1) ?? ''
  return `${field('M')} (${field('C')})`
}
