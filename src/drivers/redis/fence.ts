import { InvalidArgumentError, StaleTokenError } from '../../core/errors.ts'
import { checkResource, type FencingGuard, type Token, tokenOf } from '../../core/fencing.ts'
import { checkOptions, optionNames } from '../../core/options.ts'
import { readProtocol } from '../shared/read-protocol.ts'
import { msFromSeconds } from '../shared/seconds.ts'
import { connectionOf, type RedisClient } from './client.ts'
import { inTime } from './errors.ts'
import { siblingKey } from './keys.ts'
import { runScript, type Script, scriptCall, scriptOf } from './scripts.ts'

export interface RedisFenceOptions {
  /** A client of the server with the protected data. It need not be the server that keeps the locks. */
  readonly client: RedisClient
  /**
   * How long a command may take before it fails with `StoreError`.
   * @default 5
   */
  readonly callTimeoutSeconds?: number
}

/**
 * Guards data in Redis, so that only the newest holder of a lock can write it.
 *
 * @example
 * ```ts
 * const fence = redisFence({ client })
 * await lock.withLock('order:123', async (lease) => {
 *   await fence.set('order:123:state', 'paid', lease)
 * })
 * ```
 */
export interface RedisFence extends FencingGuard {
  /**
   * Runs `SET key value …options`, unless a larger token has been seen for this key. Resolves with the reply of `SET`.
   * The value is stored byte for byte: a text in UTF-8, or bytes such as a `Buffer`.
   *
   * @throws `StaleTokenError` if a larger token has been seen. Nothing is written.
   * @throws `StoreError` if it is unknown whether the write was made.
   * @throws `InvalidArgumentError` for an invalid key, value or token.
   */
  set(key: string, value: string | Uint8Array, token: Token, options?: readonly string[]): Promise<unknown>
  /**
   * Runs a Lua script of yours, unless a larger token has been seen for `resource`. The script sees its own `KEYS` and
   * `ARGV`. On a Cluster, resource and keys must be in one slot. Resolves with the reply of the script.
   *
   * @throws `StaleTokenError` if a larger token has been seen. The script does not run.
   * @throws `StoreError` if it is unknown whether the script has run.
   * @throws `InvalidArgumentError` for an invalid resource or token, or an unknown option.
   */
  run(script: string, write: GuardedScript): Promise<unknown>
  /**
   * Only checks and records the token. Call it before the first read of data that a write depends on, or for a resource
   * outside of Redis. Another holder can come between this check and a write elsewhere. `set` and `run` check and write
   * in one step.
   *
   * @throws `StaleTokenError` if a larger token has been seen.
   * @throws `StoreError` if it is unknown whether the token was recorded.
   * @throws `InvalidArgumentError` for an invalid resource or token.
   */
  accept(resource: string, token: Token): Promise<void>
  /**
   * Forgets the largest token, so that the next token is accepted, even a smaller one. Use it for a resource that is
   * gone, and for a resource whose lock moves to another store, when no process with an old token can reach it any
   * more. Returns whether a token had been recorded.
   *
   * @throws `StoreError` if it is unknown whether the token was forgotten.
   * @throws `InvalidArgumentError` for an invalid resource.
   */
  reset(resource: string): Promise<boolean>
}

export interface GuardedScript {
  /** The lease, or its fencing token. */
  readonly token: Token
  /**
   * The name under which the largest token is recorded.
   * @default the first key
   */
  readonly resource?: string
  readonly keys: readonly string[]
  readonly args?: readonly (string | Uint8Array)[]
}

export type { Token } from '../../core/fencing.ts'

const OPTIONS = optionNames<RedisFenceOptions>({ client: true, callTimeoutSeconds: true })
const WRITE_OPTIONS = optionNames<GuardedScript>({ token: true, resource: true, keys: true, args: true })

/**
 * A fencing guard for data in Redis. It needs no lock driver on that server.
 *
 * @throws `InvalidArgumentError` for an unknown or invalid option, or a client that is not supported.
 */
export function redisFence(options: RedisFenceOptions): RedisFence {
  const { client, callTimeoutSeconds = 5 } = checkOptions(options, OPTIONS)
  const timeoutMs = msFromSeconds('callTimeoutSeconds', callTimeoutSeconds)
  const connection = connectionOf(client)
  const scripts = new Map<string, Script>()

  function guarded(text: string): Script {
    const known = scripts.get(text)
    if (known !== undefined) return known
    const script = scriptOf(`${readProtocol('redis/fence.lua')}\n${text}`)
    // A caller that generates a new text for each call would otherwise fill the memory, as it does on the server.
    if (scripts.size >= MAX_SCRIPTS) scripts.clear()
    scripts.set(text, script)
    return script
  }

  async function run(text: string, options: GuardedScript): Promise<unknown> {
    // With a mistyped option name, the resource would be guarded by the token of the first key.
    const { token, keys, args = [], resource = keys[0] } = checkOptions(options, WRITE_OPTIONS)
    // Otherwise all writes whose resource is empty by mistake would share one largest token.
    checkResource(resource)
    const fencingToken = tokenOf(token)
    const what = 'write behind a fence'
    const sentKeys = keys.map((key, at) => sendable(`keys[${at}]`, key))
    const sentArgs = args.map((arg, at) => sendable(`args[${at}]`, arg))
    const call = scriptCall([siblingKey(resource, 'f'), ...sentKeys], [`${fencingToken}`, ...sentArgs])
    const read = (reply: unknown): unknown => {
      if (Array.isArray(reply) && reply[0] === 'holdfast:stale') {
        throw new StaleTokenError(resource, fencingToken, Number(reply[1]))
      }
      connection.master?.wrote()
      return reply
    }
    const script = guarded(text)
    return inTime(what, timeoutMs, () => runScript(connection, { what, script, call, read }), connection)
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
      const forgotten = await inTime('reset a fence', timeoutMs, forget, connection)
      connection.master?.wrote()
      return Number(forgotten) === 1
    },
  }
}

const MAX_SCRIPTS = 1_000

/** Nothing is converted: clients do that in different ways, and a lone surrogate would become another character. */
function sendable(argument: string, value: unknown): string {
  if (typeof value === 'string' && value.isWellFormed()) return value
  // Every client sends a Buffer as it is.
  if (value instanceof Uint8Array) return Buffer.from(value.buffer, value.byteOffset, value.byteLength) as never
  throw new InvalidArgumentError(argument, value, 'a string without lone surrogates, or bytes')
}
