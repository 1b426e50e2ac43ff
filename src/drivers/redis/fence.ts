import { StaleTokenError } from '../../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../../core/fencing.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { connectionOf, type RedisClient } from './client.ts'
import { inTime } from './errors.ts'
import { siblingKey } from './keys.ts'
import { runScript, type Script, scriptCall, scriptOf } from './scripts.ts'

export interface RedisFenceOptions {
  /** Where the protected data is: it need not be the server that keeps the locks. */
  readonly client: RedisClient
  readonly commandTimeoutSeconds?: number
}

/** Writes to Redis that only the newest holder of a lock can make. */
export interface RedisFence extends FencingGuard {
  /**
   * `SET key value …options`, unless a larger token has been seen for this key. Rejects with `StaleTokenError` if one
   * has, and with `StoreError` when it is not known whether the write was made.
   */
  set(key: string, value: string, token: Token, options?: readonly string[]): Promise<unknown>
  /**
   * Runs the caller's own script, unless a larger token has been seen for `resource` (the first key if not said). The
   * script sees its keys and arguments as usual. On Cluster, resource and keys must be in one slot.
   */
  run(script: string, write: GuardedScript): Promise<unknown>
  /**
   * Only the check: before the first read of what a write depends on, or for a resource outside of Redis. Another
   * holder can come between it and a write elsewhere; `set` and `run` are one step with theirs. Rejects as they do.
   */
  accept(resource: string, token: Token): Promise<void>
  /**
   * Forgets the largest token: the next one is let through, whatever it is. For a resource that is gone, and for one
   * whose lock moves to another store, when no process that could have an old token can reach it any more. True if it
   * was known. Rejects with `StoreError` when it is not known whether it was forgotten.
   */
  reset(resource: string): Promise<boolean>
}

export interface GuardedScript {
  readonly token: Token
  readonly resource?: string
  readonly keys: readonly string[]
  readonly args?: readonly string[]
}

export type { Token } from '../../core/fencing.ts'

const OPTIONS = optionNames<RedisFenceOptions>({ client: true, commandTimeoutSeconds: true })
const WRITE_OPTIONS = optionNames<GuardedScript>({ token: true, resource: true, keys: true, args: true })

export function redisFence(options: RedisFenceOptions): RedisFence {
  const { client, commandTimeoutSeconds = 5 } = checkOptions(options, OPTIONS)
  const connection = connectionOf(client)
  const scripts = new Map<string, Script>()

  function guarded(text: string): Script {
    const known = scripts.get(text)
    if (known !== undefined) return known
    const script = scriptOf(`${readProtocol('redis/fence.lua')}\n${text}`)
    // A caller that makes a new text for every call would otherwise fill the memory here, as it does on the server.
    if (scripts.size >= MAX_SCRIPTS) scripts.clear()
    scripts.set(text, script)
    return script
  }

  async function run(text: string, options: GuardedScript): Promise<unknown> {
    // A resource under a mistyped name would be guarded by the mark of the first key.
    const { token, keys, args = [], resource = keys[0] } = checkOptions(options, WRITE_OPTIONS)
    // Without this, every write to a resource that was left empty by mistake would be judged by one and the same mark.
    checkResource(resource)
    const fencingToken = tokenOf(token)
    const call = scriptCall([siblingKey(resource, 'f'), ...keys], [`${fencingToken}`, ...args])
    const write = (): Promise<unknown> => runScript(connection, guarded(text), call)
    const reply = await inTime('write behind a fence', commandTimeoutSeconds * 1_000, write, connection)
    if (Array.isArray(reply) && reply[0] === 'holdfast:stale') {
      throw new StaleTokenError(resource, fencingToken, Number(reply[1]))
    }
    connection.master?.wrote()
    return reply
  }

  return {
    run,
    set: (key, value, token, options = []) =>
      run(readProtocol('redis/fence-set.lua'), { token, keys: [key], args: [value, ...options] }),
    async accept(resource, token) {
      await run('return 1', { token, resource, keys: [] })
    },
    async reset(resource) {
      checkResource(resource)
      const mark = siblingKey(resource, 'f')
      const forget = (): Promise<unknown> => connection.command(mark, ['DEL', mark])
      const forgotten = await inTime('reset a fence', commandTimeoutSeconds * 1_000, forget, connection)
      connection.master?.wrote()
      return Number(forgotten) === 1
    },
  }
}

const MAX_SCRIPTS = 1_000
