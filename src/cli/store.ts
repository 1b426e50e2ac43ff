import { hostname, userInfo } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { type ParseArgsConfig, parseArgs } from 'node:util'
import { connect, namesStore } from '../connect.ts'
import { checkLockName } from '../core/arguments.ts'
import type { Driver, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { messageOf } from '../core/foreign-errors.ts'
import type { ReadPages } from '../core/pages.ts'
import { UsageError } from './exit-codes.ts'
import { say } from './text.ts'

/** Reads the options of a command, among which is `--url`, and its other arguments. Throws `UsageError`. */
export function argumentsOf<Options extends NonNullable<ParseArgsConfig['options']>>(
  args: readonly string[],
  options: Options,
): ReturnType<typeof parseArgs<Parser<Options>>> {
  return parsing(() => parseArgs({ args: [...args], allowPositionals: true, options: { url: TEXT, ...options } }))
}

interface Parser<Options> {
  args: string[]
  allowPositionals: true
  options: { url: typeof TEXT } & Options
}

/** The kinds of options. */
export const TEXT = { type: 'string' } as const
export const FLAG = { type: 'boolean' } as const

/**
 * Calls a parser. What `parseArgs` finds wrong becomes a `UsageError`, without its advice on quoting, which is wrong
 * where `--` begins a command.
 */
export function parsing<Parsed>(parse: () => Parsed): Parsed {
  try {
    return parse()
  } catch (error) {
    if (!(error instanceof TypeError)) throw error
    const [problem = ''] = messageOf(error).split('To specify')
    throw new UsageError(problem.replaceAll(/\s+/g, ' ').trim())
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
export type Seen = Pick<ReadPages, 'leases' | 'waiters'>

/** A lease as JSON. It is unknown since when another client holds its lock. */
export const leaseJson = ({ acquiredAtMs, expiresAtMs, ...lease }: LeaseRecord) => ({
  ...lease,
  ...(acquiredAtMs > 0 && { acquiredAt: new Date(acquiredAtMs) }),
  ...(expiresAtMs !== undefined && { expiresAt: new Date(expiresAtMs) }),
})

export const waiterJson = ({ waitingSinceMs, ...waiter }: WaiterRecord) => ({
  ...waiter,
  waitingSince: new Date(waitingSinceMs),
})

/** Where the output is cut: at the width of the terminal, or after 80 columns. */
export const outputWidth = (): number => process.stdout.columns ?? 80

/** Who runs this command, for records. */
export const userAtHost = (): string => `${userName()}@${hostname()}`

/** A container may run as a user that has no name. */
function userName(): string {
  try {
    return userInfo().username
  } catch {
    return `uid ${process.getuid?.() ?? 'unknown'}`
  }
}
