import { checkUrl, chooseUrl, connect } from '../connect.ts'
import type { Driver, InspectQuery, LeaseRecord, WaiterRecord } from '../core/driver.ts'
import { checkLockName } from '../core/names.ts'
import { readPages } from '../core/pages.ts'
import { checkedPage } from '../core/store-answers.ts'
import { UsageError, usageErrorFrom } from './exit-codes.ts'

/** The store of `--url` or `HOLDFAST_URL`, or the default. Throws `InvalidArgumentError`. */
export function urlFrom(option: string | undefined): string {
  const url = chooseUrl(option)
  checkUrl(url)
  return url
}

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

/** Opens the store for as long as `use` takes. */
export async function withDriver<Result>(url: string, use: (driver: Driver) => Promise<Result>): Promise<Result> {
  const driver = await connect(url)
  try {
    return await use(driver)
  } finally {
    await driver.close()
  }
}

/** The leases and waiters that the store shows. */
export interface Seen {
  readonly leases: readonly LeaseRecord[]
  readonly waiters: readonly WaiterRecord[]
}

export const look = (driver: Driver, query: InspectQuery): Promise<Seen> =>
  readPages(async (page) => checkedPage(driver.name, await driver.inspect(page)), query)

/** Where the output is cut: at the width of the terminal, or after 80 columns. */
export const outputWidth = (): number => process.stdout.columns ?? 80
