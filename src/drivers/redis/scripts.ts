import { createHash } from 'node:crypto'
import type { RedisConnection } from './connection.ts'
import { isNoScript } from './errors.ts'

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
