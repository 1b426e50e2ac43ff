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

/** Made when it is first used, and once. */
export function protocolScript(read: () => string): () => Script {
  let script: Script | undefined
  return () => {
    script ??= scriptOf(read())
    return script
  }
}

/**
 * A command that calls a script. Whoever runs it fills the first two places, according to whether the server has the
 * script.
 */
export type ScriptCall = ['', '', keyCount: string, firstKey: string, ...keysAndArgs: string[]]

export const scriptCall = (keys: readonly string[], args: readonly string[]): ScriptCall =>
  ['', '', `${keys.length}`, ...keys, ...args] as ScriptCall

/**
 * Runs a script by its hash, and sends the text where the server does not have it: after its start, a failover, SCRIPT
 * FLUSH. What a script does, it does once, because a server that does not know it has done nothing.
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
 * Runs a script behind ballot.lua, for Redlock: rejects if the server may have forgotten leases that are still held.
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
