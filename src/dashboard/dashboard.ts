import { HoldfastError } from '../core/errors.ts'
import { withoutSecrets } from '../core/secrets.ts'
import { systemClock } from '../core/time/clock.ts'
import { forceRelease, forceReleaseRequestFrom } from './forced-release.ts'
import { checkDashboardOptions, type DashboardOptions } from './options.ts'
import { Poller } from './poller.ts'
import { admit, isRefused, type Viewer } from './request-checks.ts'
import { asset, events, json, page, sentence } from './responses.ts'
import { electionTest } from './rows.ts'
import { StoreModel } from './store-model.ts'
import { eventStream } from './stream.ts'
import { WatchedStore } from './watched-store.ts'

/** A handler of requests, to mount in a server. */
export interface Dashboard {
  (request: Request): Promise<Response>
  /** Ends all streams, stops reading, and closes the stores that the dashboard has opened. */
  close(): Promise<void>
}

/**
 * Creates the dashboard. It shows every lock of its stores, live, in a browser. Mount it under any path, for GET and
 * POST, with everything below that path. It reads a store only while a browser shows it: every half second, once for
 * all viewers.
 *
 * @throws `InvalidArgumentError`, also if `authorize` is missing
 *
 * @example
 * ```ts
 * const dashboard = createDashboard({
 *   stores: [{ url: 'redis://localhost:6379' }],
 *   authorize: async (request) => isAdmin(request) && { user: 'ada' },
 * })
 * app.all('/locks/*', (context) => dashboard(context.req.raw)) // Hono
 * ```
 */
export function createDashboard(options: DashboardOptions): Dashboard {
  const { stores: sources, authorize, allowActions, hosts, electionPrefixes } = checkDashboardOptions(options)
  const isElection = electionTest(electionPrefixes)
  const stores = sources.map((source, index) => {
    const store = new WatchedStore(source, systemClock)
    const model = new StoreModel({ store: index, baseMs: systemClock.now().wallMs, isElection })
    const poller = new Poller({ store, model, clock: systemClock, everyMs: POLL_EVERY_MS })
    return { store, model, poller, full: () => model.full(store.info), isRead: () => model.isRead }
  })
  const streams = new Set<AbortController>()

  async function handle(request: Request): Promise<Response> {
    const viewer = await admit(request, { hosts, authorize })
    if (isRefused(viewer)) return sentence(viewer.reason, viewer.status)
    const { pathname, searchParams } = new URL(request.url)
    const [, call] = /\/api\/([\w-]+)$/.exec(pathname) ?? []
    if (request.method === 'POST') return call === 'force-release' ? act(request, viewer) : notFound()
    if (request.method !== 'GET') return sentence('Only GET and POST are understood.', 405, { allow: 'GET, POST' })
    if (call === undefined) return asset(pathname) ?? page(pathname)
    if (call === 'stream') return stream(viewer)
    const store = stores[Number(searchParams.get('store') ?? Number.NaN)]
    if (store === undefined) return notFound()
    if (call === 'lock') {
      await store.poller.refresh()
      return json(store.model.detail(searchParams.get('name') ?? ''))
    }
    if (call === 'waits') {
      await store.poller.refresh()
      return json(store.model.waits())
    }
    if (call === 'rates') return rates(store.store)
    return notFound()
  }

  function stream({ user }: Viewer): Response {
    if (streams.size >= MAX_STREAMS) return sentence(`There are ${MAX_STREAMS} viewers already.`, 503)
    const ended = new AbortController()
    streams.add(ended)
    const onEnd = (): void => void streams.delete(ended)
    const welcome = { stores: stores.map(({ store }) => store.info), actions: allowActions, ...(user && { user }) }
    return events(eventStream(stores, welcome, { clock: systemClock, signal: ended.signal, onEnd }))
  }

  async function act(request: Request, { user = 'dashboard' }: Viewer): Promise<Response> {
    if (!allowActions) return json({ error: 'This dashboard is read-only.' }, 403)
    const wanted = await forceReleaseRequestFrom(request)
    if (typeof wanted === 'string') return json({ error: wanted }, 400)
    const store = stores[wanted.store]
    if (store === undefined) return notFound()
    const response = await forceRelease(store.store, wanted, user)
    // All viewers see the change before this one gets the answer.
    await store.poller.readAgain()
    return response
  }

  async function close(): Promise<void> {
    for (const { poller } of stores) poller.close()
    for (const ended of streams) ended.abort()
    await Promise.all(stores.map(({ store }) => store.close()))
  }

  return Object.assign(handle, { close })
}

async function rates(store: WatchedStore): Promise<Response> {
  try {
    return json(await store.rates())
  } catch (error) {
    if (!(error instanceof HoldfastError)) throw error
    return json({ error: withoutSecrets(error.message) }, 502)
  }
}

const notFound = (): Response => json({ error: 'There is no such thing here.' }, 404)

/** A change is shown within a second, even if a reading takes a while. */
const POLL_EVERY_MS = 500
const MAX_STREAMS = 100
