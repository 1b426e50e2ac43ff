import { createHash } from 'node:crypto'
import type { RedisConnection } from './redis-connection.ts'
import { isNoScript } from './redis-errors.ts'
import { readProtocol } from './sql-file.ts'

/** A script of `protocol/redis/`. */
export interface Script {
  readonly text: string
  readonly sha: string
}

export const scriptOf = (text: string): Script => ({ text, sha: createHash('sha1').update(text).digest('hex') })

/** Read when first used, and once. */
export function protocolScript(file: string): Script {
  const script = loaded.get(file) ?? scriptOf(readProtocol(`redis/${file}`))
  loaded.set(file, script)
  return script
}

const loaded = new Map<string, Script>()

/** A command that calls a script. Whoever runs it fills the first two places, according to whether the server has the script. */
export type ScriptCall = ['', '', keyCount: string, firstKey: string, ...keysAndArgs: string[]]

export const scriptCall = (keys: readonly string[], args: readonly string[]): ScriptCall =>
  ['', '', `${keys.length}`, ...keys, ...args] as ScriptCall

/**
 * Runs a script by its hash, and sends the text where the server does not have it: after its start, a failover, SCRIPT FLUSH. What a
 * script does, it does once, because a server that does not know it has done nothing.
 */
export function runScript(
  connection: Pick<RedisConnection, 'command' | 'together'>,
  { text, sha }: Script,
  call: ScriptCall,
): Promise<unknown> {
  return send(connection, call, 'EVALSHA', sha).catch((error: unknown) => {
    if (!isNoScript(error)) throw error
    return send(connection, call, 'EVAL', text)
  })
}

/**
 * The same for Redlock's ballots. A server forgets its scripts when it starts, and a node that has started may have forgotten leases, too: it
 * must not vote before all of them have run out. So whoever finds the script missing looks first (`mayVote` rejects if it is too early), and
 * only then brings it. The text differs from the plain one, and for every grace, so that nobody brings it who has looked less closely.
 */
export const ballotRunner =
  ({ graceMs, mayVote }: VoteGuard): typeof runScript =>
  async (connection, script, call) => {
    const { text, sha } = ballotScript(script, graceMs)
    try {
      return await send(connection, call, 'EVALSHA', sha)
    } catch (error) {
      if (!isNoScript(error)) throw error
      await mayVote()
      return send(connection, call, 'EVAL', text)
    }
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

export interface VoteGuard {
  /** How long after its start a node does not vote. */
  readonly graceMs: number
  /** Rejects if it is too early. */
  mayVote(): Promise<void>
}

function ballotScript({ text, sha }: Script, graceMs: number): Script {
  const key = `${sha} ${graceMs}`
  const known = ballots.get(key) ?? scriptOf(`${text}\n-- by ballot ${graceMs}\n`)
  ballots.set(key, known)
  return known
}

const ballots = new Map<string, Script>()
