import { setTimeout as sleep } from 'node:timers/promises'
import { type ParseArgsConfig, parseArgs } from 'node:util'
import { checkUrl, chooseUrl, connect, namesStore } from '../connect.ts'
import type { Driver, InspectQuery, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { messageOf } from '../core/foreign-errors.ts'
import { CALL_TIMEOUT_MS } from '../core/limits.ts'
import { checkLockName } from '../core/names.ts'
import { type PageBounds, type ReadPages, readPages } from '../core/pages.ts'
import { StoreClient } from '../core/store/store-client.ts'
import { systemClock } from '../core/time/clock.ts'
import { systemRandom } from '../core/time/random.ts'
import { UsageError, usageErrorFrom } from './exit-codes.ts'
import { say } from './text.ts'

/** The store of `--url` or `HOLDFAST_URL`, or the default. Throws `InvalidArgumentError`. */
export function urlFrom(option: string | undefined): string {
  const url = chooseUrl(option)
  checkUrl(url)
  return url
}

/** Reads the options of a command, among which is `--url`, and its other arguments. Throws `UsageError`. */
export function argumentsOf<Options extends NonNullable<ParseArgsConfig['options']>>(
  args: readonly string[],
  options: Options,
): Arguments<Options & { url: typeof TEXT }> {
  return parsing(() => parseArgs({ args: [...args], allowPositionals: true, options: { url: TEXT, ...options } }))
}

type Arguments<Options extends NonNullable<ParseArgsConfig['options']>> = ReturnType<
  typeof parseArgs<{ args: string[]; allowPositionals: true; options: Options }>
>

/** The kinds of options. */
export const TEXT = { type: 'string' } as const
export const FLAG = { type: 'boolean' } as const

/** Calls a parser. What `parseArgs` finds wrong becomes a `UsageError`. */
export function parsing<Parsed>(parse: () => Parsed): Parsed {
  try {
    return parse()
  } catch (error) {
    throw error instanceof TypeError ? usageErrorFrom(error) : error
  }
}

/** The one name that a command takes. `what` is how its help calls it. */
export function oneName(command: string, positionals: readonly string[], what = 'lock name'): string {
  const [name, ...more] = positionals
  if (name === undefined || more.length > 0) {
    throw new UsageError(`${command} needs one ${what}, but got ${positionals.length}`)
  }
  checkLockName(name, what === 'key' ? what : undefined)
  return name
}

/** The prefix of lock names that a command takes, or an empty text. */
export function onePrefix(command: string, positionals: readonly string[]): string {
  const [prefix = '', ...more] = positionals
  if (more.length > 0) throw new UsageError(`${command} takes at most one prefix, but got ${positionals.length}`)
  // Without this check, `ls redis://…` would list the default store.
  if (prefix.includes('://') && namesStore(prefix)) {
    throw new UsageError(`pass the store with --url: ${command} --url URL`)
  }
  return prefix
}

/** Opens the store for as long as `use` takes. */
export async function withDriver<Result>(url: string, use: (driver: Driver) => Promise<Result>): Promise<Result> {
  const driver = await connect(url)
  try {
    return await use(driver)
  } finally {
    await driver.close()
  }
}

/**
 * Closes a store, and waits for one that does not answer only this long. `holdfast run` waits until its lease has ended
 * by itself: then there is nothing left to release. A failure is printed, but does not change the exit code.
 */
export async function closeWithin(ms: number, close: () => Promise<void>): Promise<void> {
  const closed = new AbortController()
  const report = (error: unknown): void => say(`cannot close the store: ${messageOf(error)}`)
  await Promise.race([close().catch(report), sleep(ms, undefined, { signal: closed.signal })])
  closed.abort()
}

/** The leases and waiters that the store shows. */
export interface Seen {
  readonly leases: readonly LeaseRecord[]
  readonly waiters: readonly WaiterRecord[]
}

/** Reads leases and waiters, page by page, with a deadline for each page. */
export const look = (driver: Driver, query: InspectQuery, bounds?: PageBounds): Promise<ReadPages> => {
  const store = storeClientOf(driver)
  return readPages((page) => store.inspect(page), query, bounds)
}

export const storeClientOf = (driver: Driver): StoreClient =>
  new StoreClient(driver, { clock: systemClock, random: systemRandom, callTimeoutMs: CALL_TIMEOUT_MS })

/** Where the output is cut: at the width of the terminal, or after 80 columns. */
export const outputWidth = (): number => process.stdout.columns ?? 80
