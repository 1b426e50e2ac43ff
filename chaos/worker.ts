// One client process: several tasks that contend for a few lock names. clients.ts starts it with the test harness, and
// calls its exported functions. It writes everything that happens to the history at once.
import type { ClientSettings } from './client-settings.ts'
import { Draw } from './draw.ts'
import { nowMs } from './history.ts'
import { HistoryWriter } from './history-writer.ts'
import { openStore, type Store, workOf } from './open-store.ts'
import { RecordClient } from './record-client.ts'
import { keep, runTask } from './tasks.ts'
import { Watches } from './watch.ts'

export type { ClientSettings } from './client-settings.ts'
export { block } from './tasks.ts'

/** The codes of errors that are expected under faults. */
const EXPECTED_CODES = ['STORE_UNAVAILABLE', 'ABORTED']

/** More claims than this do not wait at the same time. */
const MOST_WAITING = 200

let stopping: AbortController | undefined
let tasks: Promise<unknown>[] = []
let store: Store | undefined
/** Connections are replaced until then: after the faults, the client queues for a lock. */
let isClosing = false
/** Stores whose connection has ended. Their leases may still be held. */
const retired: Store[] = []
let history: HistoryWriter | undefined
let watches: Watches | undefined
let record: RecordClient | undefined
let through = ''
const queued = new Map<string, Promise<number>>()

export async function start(settings: ClientSettings): Promise<void> {
  const stop = new AbortController()
  through = settings.through
  const writer = new HistoryWriter(settings.file)
  const work = workOf(settings)
  const opened = await openStore(settings, work)
  const watching = new Watches(writer)
  const { followed, waitingSince } = following(watching)
  followed(opened)
  if (settings.recordPort !== undefined) record = new RecordClient(settings.recordPort)
  history = writer
  watches = watching
  store = opened
  stopping = stop
  const replaceConnection = async (): Promise<void> => {
    while (opened.connection !== undefined) {
      await opened.connection.ended
      if (isClosing) return
      retired.push({ ...opened })
      followed(Object.assign(opened, await openStore(settings, work)))
    }
  }
  void replaceConnection()
  const taskOf = (task: number) => ({
    ...{ store: opened, work, history: writer, watches: watching, waitingSince, record, task, settings },
    draw: new Draw(`${settings.seed}/${task}`),
    stop: stop.signal,
    noteError,
  })
  tasks = [
    ...Array.from({ length: settings.tasks }, (_, task) => runTask(taskOf(task))),
    ...settings.kept.map((kept, at) => keep(taskOf(settings.tasks + at), kept)),
  ]
}

/** Ends every task: gives up waiting claims, and releases leases. Resolves when all tasks have ended. */
export async function quiet(): Promise<void> {
  stopping?.abort()
  await Promise.all(tasks)
}

/** The application releases all advisory locks of its connection. False if it has none, or if it has just ended. */
export async function unlockAll(): Promise<boolean> {
  const unlocked = store?.connection?.unlockAll()
  return (
    unlocked?.then(
      () => true,
      () => false,
    ) ?? false
  )
}

/** Waits for a lock in the background, and releases it when it is granted. */
export function queue(name: string): void {
  const wait = async (): Promise<number> => {
    const lease = await store?.lock.hold(name, { blockingTimeoutSeconds: 60 })
    // On a busy machine its answer may be late. Then it is sent again in the background.
    await lease?.release().catch((error: unknown) => noteError('release', error))
    return lease?.fencingToken ?? 0
  }
  const token = wait()
  token.catch(() => {}) // `queuedToken` reports it, unless the harness has given up the queue.
  queued.set(name, token)
}

/** The token with which `queue` was granted its lock. */
export async function queuedToken(name: string): Promise<number> {
  return (await queued.get(name)) ?? 0
}

/** Why `queue` has no place in the queue: how far it has come, and what the store says to this client. */
export async function queueState(name: string): Promise<string> {
  let own = 'it still waits'
  queued.get(name)?.then(
    (token) => {
      own = `it was granted ${token}`
    },
    (error: unknown) => {
      own = `it failed: ${error}`
    },
  )
  const seen = await store?.lock.inspect(name).then(
    ({ leases, waiters }) => `it sees ${leases.length} leases and ${waiters.length} waiters`,
    (error: unknown) => `it cannot inspect: ${error}`,
  )
  const asked = await store?.lock.acquire(name, { blocking: false }).then(
    ({ acquired }) => `another claim of it is ${acquired ? 'granted' : 'refused'}`,
    (error: unknown) => `another claim of it fails: ${error}`,
  )
  return [`${store?.lock.holderId} through ${through}`, own, seen, asked].join('; ')
}

export async function stop(): Promise<void> {
  await quiet()
  isClosing = true
  const close = (all: readonly ({ close(): Promise<void> } | undefined)[]): Promise<unknown> =>
    Promise.all(all.map((each) => each?.close().catch((error: unknown) => noteError('close', error))))
  for (const { connection, ...instances } of [...retired, ...(store === undefined ? [] : [store])]) {
    await close(Object.values(instances))
    // Not before the releases of the instances, which need it.
    await close([connection])
  }
  record?.close()
  watches?.close()
  history?.close()
}

/** Follows the events of stores, and knows since when a claim waited that was granted with a token. */
function following(watching: Watches) {
  const waiting = new Map<string, number>()
  const granted = new Map<string, number>()
  const followed = ({ lock, sharing, permits, election }: Store): void => {
    for (const each of [lock, sharing, permits, election]) {
      each?.on('waiting', ({ claimId }) => {
        waiting.set(claimId, nowMs())
        // No event ends a claim that was aborted.
        if (waiting.size > MOST_WAITING) waiting.delete([...waiting.keys()][0] ?? '')
      })
      each?.on('acquired', ({ claimId, lockName, fencingToken }) => {
        const sinceMs = waiting.get(claimId)
        if (sinceMs !== undefined) granted.set(`${lockName} ${fencingToken}`, sinceMs)
        waiting.delete(claimId)
      })
      each?.on('refused', ({ claimId }) => waiting.delete(claimId))
      each?.on('renewed', ({ fencingToken }) => watching.confirmed(fencingToken))
    }
  }
  const waitingSince = (name: string, token: number): number | undefined => {
    const sinceMs = granted.get(`${name} ${token}`)
    granted.delete(`${name} ${token}`)
    return sinceMs
  }
  return { followed, waitingSince }
}

/** Returns the code of the error. */
function noteError(where: string, error: unknown): string {
  const { code } = (error ?? {}) as { code?: unknown }
  const isExpected = typeof code === 'string' && EXPECTED_CODES.includes(code)
  const text = error instanceof Error ? `${where}: ${error.name}: ${error.message}` : `${where}: ${String(error)}`
  const shown = typeof code === 'string' ? code : 'none'
  history?.error(where, shown, isExpected ? undefined : text)
  return shown
}
