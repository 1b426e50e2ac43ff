import { createHash } from 'node:crypto'
import { StoreError } from '../../core/errors.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import type { RedisConnection } from './connection.ts'
import { isNoScript } from './errors.ts'
import { VOTER } from './keys.ts'

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

/**
 * Runs a script by its hash. If the server does not have the script (after a start, a failover or SCRIPT FLUSH), it
 * sends the text. The script still runs only once: a server that does not know it has done nothing.
 */
export function runScript(
  connection: Pick<RedisConnection, 'command' | 'together' | 'master'>,
  { text, sha }: Script,
  call: ScriptCall,
): Promise<unknown> {
  return send(connection, call, 'EVALSHA', sha).catch((error: unknown) => {
    if (isNoScript(error)) return send(connection, call, 'EVAL', text)
    connection.master?.failed(error)
    throw error
  })
}

/**
 * For Redlock: runs a script behind ballot.lua. Rejects if the server may have forgotten leases that are still held.
 */
export const ballotRunner =
  (longestTtlMs: number): typeof runScript =>
  async (connection, script, call) => {
    const afterKeys = 3 + Number(call[2])
    const keys = [...call.slice(3, afterKeys), VOTER]
    const args = [...call.slice(afterKeys), `${longestTtlMs}`]
    const reply = await runScript(connection, guardedScript(script), scriptCall(keys, args))
    if (!Array.isArray(reply) || reply[0] !== 's') return reply
    const seconds = Math.ceil(Number(reply[1]) / 1_000)
    throw new StoreError(`it does not vote for another ${seconds} s, because it may have forgotten leases`)
  }

function send(
  connection: Pick<RedisConnection, 'command'>,
  call: ScriptCall,
  command: string,
  script: string,
): Promise<unknown> {
  const filled: string[] = call
  filled[0] = command
  filled[1] = script
  return connection.command(call[3], filled)
}

function guardedScript({ text, sha }: Script): Script {
  const known = guardedScripts.get(sha) ?? scriptOf(`${readProtocol('redis/ballot.lua')}\n${text}`)
  guardedScripts.set(sha, known)
  return known
}

const guardedScripts = new Map<string, Script>()
