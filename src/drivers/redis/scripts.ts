import { createHash } from 'node:crypto'
import type { RedisConnection } from './connection.ts'
import { isNoScript, isReadOnly } from './errors.ts'

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

type ScriptConnection = Pick<RedisConnection, 'command' | 'together' | 'master' | 'findMasters'>

/**
 * Runs a script by its hash. If the server does not have the script (after a start, a failover or SCRIPT FLUSH), it
 * sends the text. The script still runs only once: a server that does not know it has done nothing. Nor has a replica
 * that refuses its first write.
 */
export function runScript(connection: ScriptConnection, { text, sha }: Script, call: ScriptCall): Promise<unknown> {
  return send(connection, call, 'EVALSHA', sha).catch((error: unknown) => {
    if (!isNoScript(error)) return sendToMaster(connection, text, call, error)
    return send(connection, call, 'EVAL', text).catch((second: unknown) => sendToMaster(connection, text, call, second))
  })
}

/** Sends it again if the client has sent it to a replica, and finds the master. Otherwise throws the error. */
async function sendToMaster(
  connection: ScriptConnection,
  text: string,
  call: ScriptCall,
  error: unknown,
): Promise<unknown> {
  if (isReadOnly(error) && connection.findMasters !== undefined) {
    await connection.findMasters()
    return send(connection, call, 'EVAL', text)
  }
  connection.master?.failed(error)
  throw error
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
