import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { faultsFor } from '../../chaos/wire/fault.ts'
import type { Conversation, Message } from '../../chaos/wire/message.ts'
import { postgresConversation } from '../../chaos/wire/postgres.ts'
import { respConversation } from '../../chaos/wire/resp.ts'
import { Wires } from '../../chaos/wire/wires.ts'
import { framed } from '../harness/wire.ts'

const RESP_REQUESTS = [
  '*1\r\n$4\r\nPING\r\n',
  '*3\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$4\r\n\r\n*1\r\n',
  '*1\r\n$0\r\n\r\n',
]
const RESP_REPLIES = [
  '+OK\r\n',
  '-NOSCRIPT none\r\n',
  ':7\r\n',
  '$-1\r\n',
  '$5\r\na\r\nb+\r\n',
  '*-1\r\n',
  '*2\r\n*1\r\n:1\r\n$1\r\nx\r\n',
  '%1\r\n+a\r\n*0\r\n',
  '|1\r\n+ttl\r\n:9\r\n:5\r\n',
  '_\r\n',
  '#t\r\n',
  ',1.5\r\n',
  '>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n',
]
const text = (body: string): Buffer => Buffer.from(`${body}\0`)
const STARTUP = framed('', Buffer.from('\0\x03\0\0user\0postgres\0\0', 'latin1'))
const EXTENDED = ['P', 'B', 'D', 'E', 'S'].map((type) => framed(type, type === 'S' ? Buffer.alloc(0) : text(type)))
const PG_REQUESTS = [STARTUP, framed('Q', text('BEGIN')), Buffer.concat(EXTENDED), framed('X', Buffer.alloc(0))]
const ready = (status: string): Buffer => framed('Z', Buffer.from(status))
const PG_REPLIES = [
  Buffer.concat([framed('R', Buffer.alloc(4)), framed('S', text('a')), ready('I')]),
  Buffer.concat([framed('C', text('BEGIN')), ready('T')]),
  framed('A', text('channel')),
  Buffer.concat([framed('1', Buffer.alloc(0)), framed('D', text('row')), framed('C', text('SELECT 1')), ready('I')]),
]

describe('messages are found in any chunks', () => {
  test.each([
    ['requests of Redis', respConversation, 'fromClient', RESP_REQUESTS.map((each) => Buffer.from(each))],
    ['replies of Redis', respConversation, 'fromServer', RESP_REPLIES.map((each) => Buffer.from(each))],
    ['requests to PostgreSQL', postgresConversation, 'fromClient', PG_REQUESTS],
    ['replies of PostgreSQL', postgresConversation, 'fromServer', PG_REPLIES],
  ] as const)('%s', (_, converse, from, expected) => {
    const stream = Buffer.concat([...expected])
    const cuts = fc.uniqueArray(fc.integer({ min: 1, max: stream.length - 1 })).map((all) => all.sort((x, y) => x - y))
    const check = (ends: readonly number[]): void => {
      const conversation: Conversation = converse()
      const starts = [0, ...ends]
      const chunks = starts.map((start, at) => stream.subarray(start, ends[at] ?? stream.length))
      const found = chunks.flatMap((chunk) => conversation[from](chunk))
      expect(found.map(({ bytes }) => bytes.toString('latin1'))).toEqual(
        expected.map((each) => each.toString('latin1')),
      )
    }
    check([])
    check(Array.from({ length: stream.length - 1 }, (_, at) => at + 1))
    fc.assert(fc.property(cuts, check), { numRuns: 100 })
  })
})

describe('requests, replies and events are distinguished', () => {
  test('a message of a subscription is an event, and the confirmation of a subscription is a reply', () => {
    const kinds = (stream: string) => respConversation().fromServer(Buffer.from(stream))
    expect(kinds('*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n')).toMatchObject([{ kind: 'event', label: 'message' }])
    expect(kinds('>3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n')).toMatchObject([{ kind: 'event' }])
    expect(kinds('>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n')).toMatchObject([{ kind: 'reply' }])
  })

  test('only a script can be missing, and an event cannot become an error', () => {
    const conversation = respConversation()
    const [ping, script] = conversation.fromClient(Buffer.from(RESP_REQUESTS.join(''))) as [Message, Message]
    expect(faultsFor(conversation, script)).toEqual(expect.arrayContaining(['twice', 'READONLY', 'NOSCRIPT', 'OOM']))
    expect(faultsFor(conversation, ping)).not.toContain('NOSCRIPT')
    const [event] = conversation.fromServer(Buffer.from(RESP_REPLIES.at(-1) ?? '')) as [Message]
    expect(faultsFor(conversation, event)).toEqual(['lost', 'late', 'overtaken', 'cut-before', 'cut-after'])
  })

  test('after a Flush, PostgreSQL answers without ReadyForQuery', () => {
    const conversation = postgresConversation()
    conversation.fromClient(STARTUP)
    conversation.fromServer(PG_REPLIES[0] as Buffer)
    const flushed = Buffer.concat([framed('P', text('')), framed('D', text('S')), framed('H', Buffer.alloc(0))])
    expect(conversation.fromClient(flushed)).toMatchObject([{ label: 'PDH' }])
    const answer = ['1', 't', 'T'].map((type) => framed(type, Buffer.alloc(2)))
    expect(conversation.fromServer(Buffer.concat(answer))).toMatchObject([{ label: '1tT' }])
  })

  test('an injected error of PostgreSQL keeps the state of the transaction, unless it ends the connection', () => {
    const conversation = postgresConversation()
    for (const request of PG_REQUESTS.slice(0, 2)) conversation.fromClient(request)
    for (const reply of PG_REPLIES.slice(0, 2)) conversation.fromServer(reply)
    const [query] = conversation.fromClient(PG_REQUESTS[2] as Buffer) as [Message]
    expect(conversation.errorReply('40001', query).bytes.subarray(-6)).toEqual(ready('E'))
    expect(conversation.errorReply('57P01', query)).toMatchObject({ isFatal: true })
  })
})

describe('a fault hits exactly one message', () => {
  const PING = '*1\r\n$4\r\nPING\r\n'

  test.each([
    ['without a fault, all requests are answered in order', undefined, ':1\r\n:2\r\n:3\r\n'],
    ['an error answers a request in its turn, and the server does not get it', 'OOM', ':1\r\n-OOM .*\r\n:2\r\n'],
  ])('%s', async (_, fault, expected) => {
    expect(await exchange(fault === undefined ? {} : { 'a0.0q2': fault })).toMatch(new RegExp(`^${expected}$`))
  })

  test('an error replaces a reply, and the server has done the request', async () => {
    expect(await exchange({ 'a0.0r2': 'READONLY' })).toMatch(/^:1\r\n-READONLY .*\r\n:3\r\n$/)
  })

  test('a cut after a reply leaves that reply', async () => {
    expect(await exchange({ 'a0.0r2': 'cut-after' })).toBe(':1\r\n:2\r\n')
  })

  test('a late reply holds back the replies behind it, and loses none', async () => {
    expect(await exchange({ 'a0.0r1': 'late' })).toBe(':1\r\n:2\r\n:3\r\n')
  })

  /** Sends three requests at once to a server that numbers them. Returns what arrives until the end or all of it. */
  async function exchange(faults: Record<string, string>): Promise<string> {
    const sockets: Socket[] = []
    const server = createServer((socket) => {
      let count = 0
      const conversation = respConversation()
      sockets.push(socket)
      socket.on('error', () => {})
      socket.on('data', (chunk) => {
        for (const _ of conversation.fromClient(chunk)) socket.write(`:${++count}\r\n`)
      })
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    try {
      await using wires = new Wires(
        respConversation,
        [(server.address() as AddressInfo).port],
        new Map(Object.entries(faults)),
      )
      wires.begin()
      const [port] = await wires.portsFor('a')
      const received = await new Promise<string>((resolve) => {
        let all = ''
        const client = connect({ port: port as number, host: '127.0.0.1' }, () => client.write(PING.repeat(3)))
        client.on('data', (chunk) => {
          all += chunk.toString()
          if (all.split('\r\n').length > 3) client.destroy()
        })
        client.on('error', () => {})
        client.on('close', () => resolve(all))
      })
      return received
    } finally {
      for (const socket of sockets) socket.destroy()
      server.close()
    }
  }
})
