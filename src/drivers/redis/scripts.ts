import { createHash } from 'node:crypto'
import { MAX_TIME_MS } from '../../core/lock-info.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection } from './connection.ts'
import { isNoScript, isReadOnly, storeErrorFrom } from './errors.ts'
import { unexpectedReply } from './format.ts'
import { COUNTER, keysOf, slotCounter } from './keys.ts'

/** A script of `protocol/redis/`. */
export interface Script {
  readonly text: string
  readonly sha: string
}

export const scriptOf = (text: string): Script => ({ text, sha: createHash('sha1').update(text).digest('hex') })

/** The script is read and hashed once, when it is first used. */
export function protocolScript(read: () => string): () => Script {
  let script: Script | undefined
  return () => {
    script ??= scriptOf(read())
    return script
  }
}

/**
 * The arguments of a command that calls a script. `runScript` fills the first two places: EVALSHA and the hash, or EVAL
 * and the text.
 */
export type ScriptCall = ['', '', keyCount: string, firstKey: string, ...keysAndArgs: string[]]

export const scriptCall = (keys: readonly string[], args: readonly string[]): ScriptCall =>
  ['', '', `${keys.length}`, ...keys, ...args] as ScriptCall

/** A call of a script, and how its reply is read. The nodes of a Redlock share one. */
export interface ScriptRun<Answer> {
  /** For errors. */
  readonly what: string
  readonly script: Script
  readonly call: ScriptCall
  /** `session`: what `RedisConnection.session` returned before the call, if `watchesSession`. */
  read(reply: unknown, connection: RedisConnection, session: unknown): Answer | Promise<Answer>
  readonly watchesSession?: boolean
}

/**
 * Runs a script by its hash. If the server does not have the script (after a start, a failover or SCRIPT FLUSH), it
 * sends the text. The script still runs only once: a server that does not know it has done nothing. Nor has a replica
 * that refuses its first write.
 *
 * @throws `HoldfastError`
 */
export function runScript<Answer>(connection: RedisConnection, run: ScriptRun<Answer>): Promise<Answer> {
  const session = run.watchesSession && connection.session?.(false)
  const read = (reply: unknown): Answer | Promise<Answer> => run.read(reply, connection, session)
  // One promise for the client's answer and its errors: these are on the way of every claim.
  return send(connection, run.call, 'EVALSHA', run.script.sha).then(read, (first: unknown) =>
    sendAgain(connection, run, first).then(read, (error: unknown) => {
      throw storeErrorFrom(run.what, error, connection)
    }),
  )
}

/** Sends the text, or the script again if the client has sent it to a replica. Otherwise throws the error. */
async function sendAgain(
  connection: RedisConnection,
  { call, script }: ScriptRun<unknown>,
  first: unknown,
): Promise<unknown> {
  let error = first
  if (isNoScript(error)) {
    try {
      return await send(connection, call, 'EVAL', script.text)
    } catch (second) {
      error = second
    }
  }
  if (isReadOnly(error) && connection.findMasters !== undefined) {
    await connection.findMasters()
    return send(connection, call, 'EVAL', script.text)
  }
  connection.master?.failed(error)
  throw error
}

function send(connection: RedisConnection, call: ScriptCall, command: string, script: string): Promise<unknown> {
  const filled: string[] = call
  filled[0] = command
  filled[1] = script
  return connection.command(call[3], filled)
}

export const leasesScript = protocolScript(() => readProtocol('redis/leases.lua'))

export interface ListParts {
  readonly connection: RedisConnection
  readonly prefix: string
  readonly timeoutMs: number
}

/** A list of entries for leases.lua. */
export interface LeasesList {
  readonly operation: 'acquire' | 'renew' | 'release'
  readonly requests: readonly { readonly lockName: string }[]
  /** From the fourth on. */
  readonly args: readonly string[]
  /** acquire: the client's channel and the call's secret. release: a channel, and the messages to publish there. */
  readonly publication?: Publication | undefined
}

export interface Publication {
  readonly channel: string
  readonly text: string
}

/** The server's time, followed by the script's answer to each entry. */
export type LeasesReply = [nowMs: number, ...answers: unknown[]]

type ReadLeases<Answer> = (reply: LeasesReply, ...more: [RedisConnection, unknown]) => Answer | Promise<Answer>

/** Runs leases.lua. `slot`: of all its keys on a Cluster. */
export const runLeases = <Answer>(
  { connection, prefix }: ListParts,
  slot: number,
  list: LeasesList,
  read: ReadLeases<Answer>,
): Promise<Answer> => runScript(connection, leasesRun(prefix, connection.cluster ? slot : undefined, list, read))

/** `slot`: on a Cluster only. */
export function leasesRun<Answer>(
  prefix: string,
  slot: number | undefined,
  list: LeasesList,
  read: ReadLeases<Answer>,
): ScriptRun<Answer> {
  const { operation, requests, args, publication } = list
  const keys = [slot === undefined ? COUNTER : slotCounter(slot), ...keysOf(prefix, requests)]
  return {
    what: operation,
    script: leasesScript(),
    call: scriptCall(keys, [operation, publication?.channel ?? '', publication?.text ?? '', ...args]),
    read(reply, connection, session) {
      const answers = readReply(operation, requests.length, reply)
      const { master } = connection
      if (master !== undefined && master.state !== 'writes' && hasWritten(answers)) master.wrote()
      return read(answers, connection, session)
    },
    watchesSession: operation === 'release',
  }
}

/**
 * Expands the short reply "yes to all" to one answer for each entry. With ioredis' `stringNumbers`, numbers arrive as
 * text, here and in every answer.
 */
function readReply(operation: string, count: number, reply: unknown): LeasesReply {
  if (!isReply(reply)) throw unexpectedReply(operation, reply)
  reply[0] = Number(reply[0])
  const isTime = reply[0] >= (operation === 'acquire' ? 1 : 0) && reply[0] <= MAX_TIME_MS
  if (!isTime) throw unexpectedReply(operation, reply)
  if (count === 1 || reply[1] !== 'g') {
    if (reply.length !== 1 + count) throw unexpectedReply(operation, reply)
    return reply
  }
  const first = operation === 'acquire' ? Number(reply[2]) : 1
  const step = operation === 'acquire' ? 1 : 0
  for (let index = 0; index < count; index += 1) reply[1 + index] = first + index * step
  return reply
}

const isReply = (reply: unknown): reply is LeasesReply => Array.isArray(reply) && reply.length > 1

/**
 * Whether the script ran a write command, which a replica would have refused. Every claim that was granted, refused or
 * queued did.
 */
const hasWritten = (reply: LeasesReply): boolean =>
  reply.some((answer, index) => index > 0 && (isClaimed(answer) || Number(answer) > 0))

const isClaimed = (answer: unknown): boolean => Array.isArray(answer) && (answer[0] === 'y' || answer[0] === 'n')
