import { storeOpener } from '../connect.ts'
import { checkFunction } from '../core/arguments.ts'
import type { Driver } from '../core/driver.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import { checkObject, checkOptions, isArray, optionNames } from '../core/options.ts'
import { redactedUrl } from '../core/secrets.ts'
import type { StoreSource } from './watched-store.ts'

export interface DashboardOptions {
  /** What to show: at least one store, by its URL or as a driver. */
  stores: readonly DashboardStore[]
  /**
   * Decides who may see the dashboard. It is called for every request, with the request. Return false to refuse it,
   * true to allow it, or a user, whose name is then recorded with what that user does.
   *
   * `'none'`: everyone who can reach the handler may see it, because something in front of it decides. There is no
   * default.
   */
  authorize: Authorize | 'none'
  /**
   * Whether viewers may end leases by force.
   *
   * @default false
   */
  allowActions?: boolean
  /**
   * The hosts under which this dashboard is reached, such as `['ops.example.com', 'localhost:3000']`. One without a
   * port means every port. A request for another host is refused. Set it wherever a browser on the same machine or
   * network could be led here under a foreign name (DNS rebinding), which `authorize: 'none'` does not notice.
   *
   * @default any
   */
  hosts?: readonly string[]
  /**
   * Prefixes of the names of leader elections. An election with a published value is recognised without this. One
   * without a value looks like a lock in the store.
   *
   * @default []
   */
  electionPrefixes?: readonly string[]
}

export type Authorize = (
  request: Request,
) => boolean | DashboardUser | undefined | Promise<boolean | DashboardUser | undefined>

/** Who looks at the dashboard. */
export interface DashboardUser {
  /** It is recorded with every forced release. At most 255 characters. */
  readonly user: string
}

export interface DashboardStore {
  /**
   * How the page calls it.
   *
   * @default where the store is, without user name and password
   */
  name?: string
  /** The dashboard opens it when it is first viewed, and closes it. */
  url?: string
  /** A driver that you made. You also close it. */
  driver?: Driver
}

const OPTIONS = optionNames<DashboardOptions>({
  stores: true,
  authorize: true,
  allowActions: true,
  hosts: true,
  electionPrefixes: true,
})
const STORE_OPTIONS = optionNames<DashboardStore>({ name: true, url: true, driver: true })

export interface CheckedOptions {
  readonly stores: readonly StoreSource[]
  readonly authorize: Authorize | 'none'
  readonly allowActions: boolean
  readonly hosts: readonly string[] | undefined
  readonly electionPrefixes: readonly string[]
}

/** @throws `InvalidArgumentError` */
export function checkDashboardOptions(options: DashboardOptions): CheckedOptions {
  checkOptions(options, OPTIONS)
  const { stores, authorize, allowActions = false, hosts, electionPrefixes = [] } = options
  if (!isArray(stores) || stores.length === 0 || stores.length > MAX_STORES) {
    throw new InvalidArgumentError('stores', stores, `a list of 1 to ${MAX_STORES} stores`)
  }
  if (authorize === undefined) {
    throw new InvalidArgumentError(
      'authorize',
      authorize,
      "a function that decides who may see the dashboard, or 'none' if something in front of it does",
    )
  }
  if (authorize !== 'none') checkFunction('authorize', authorize)
  if (typeof allowActions !== 'boolean') throw new InvalidArgumentError('allowActions', allowActions, 'true or false')
  checkTexts('hosts', hosts ?? [])
  checkTexts('electionPrefixes', electionPrefixes)
  return {
    stores: stores.map(checkStore),
    authorize,
    allowActions,
    hosts: hosts?.map((host) => host.toLowerCase()),
    electionPrefixes,
  }
}

function checkStore(store: DashboardStore, index: number): StoreSource {
  const argument = `stores[${index}]`
  checkObject(store, argument)
  checkOptions(store, STORE_OPTIONS, argument)
  const { name, url, driver } = store
  if ((url === undefined) === (driver === undefined)) {
    throw new InvalidArgumentError(argument, redactedUrl(url), 'either a url or a driver')
  }
  if (url !== undefined) storeOpener.checkUrl(url)
  if (name !== undefined && (typeof name !== 'string' || name === '' || name.length > MAX_STORE_NAME)) {
    throw new InvalidArgumentError(`${argument}.name`, name, `1 to ${MAX_STORE_NAME} characters`)
  }
  return store
}

function checkTexts(argument: string, value: unknown): void {
  if (isArray(value) && value.every((each) => typeof each === 'string' && each !== '')) return
  throw new InvalidArgumentError(argument, value, 'a list of texts')
}

const MAX_STORES = 20
const MAX_STORE_NAME = 100
