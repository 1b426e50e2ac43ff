import { nowMs } from '../history.ts'
import { type Client, LONGEST_TTL_SECONDS, openClient, type StoreName } from './client.ts'
import type { Fault } from './fault.ts'
import type { Ground } from './grounds.ts'
import type { Library } from './library.ts'
import { Play, pause } from './play.ts'
import type { Scene } from './scenes/scene.ts'
import { CALL_MS, SLACK_MS, seconds, TTL_MS, WAITER_MS } from './settings.ts'
import { Watch } from './watch.ts'
import { type Seen, Wires } from './wires.ts'

export interface Outcome {
  readonly violations: string[]
  /** What took too long. A busy machine may be the reason, so it has to happen again to count. */
  readonly late: readonly string[]
  readonly seen: readonly Seen[]
  /** Where faults were injected. */
  readonly injected: readonly string[]
  readonly grants: number
}

export interface SceneRun {
  readonly scene: Scene
  readonly store: StoreName
  readonly library: Library
  readonly ground: Ground
  readonly faults: ReadonlyMap<string, Fault>
  /** Exchanges the client packages of the clients. */
  readonly isMirrored: boolean
}

/** Plays a scene once with these faults, and checks all invariants. */
export async function runScene(run: SceneRun): Promise<Outcome> {
  const { scene, ground } = run
  const watch = new Watch()
  await using wires = new Wires(ground.protocol, ground.ports, run.faults)
  const id = Math.random().toString(36).slice(2, 10)
  const names = Array.from({ length: scene.locks ?? 1 }, (_, at) => `wire:${scene.name}:${id}:${at}`)
  const play = new Play(names, watch, (client) => wires.granted(client))
  const clients = await openClients(run, wires)
  try {
    if (!scene.isCold) await Promise.all(clients.map((client) => warm(client, `wire:${scene.name}:${id}:warm`)))
    wires.begin()
    await scene.play(play, clients, {
      flushScripts: ground.flushScripts,
      failOver: async () => wires.redirect(await ground.failOver()),
    })
    const fresh = await ground.fresh()
    await checkAfter({ play, fresh, ground, granted: () => wires.granted(fresh.id) })
    fresh.abandon()
  } finally {
    for (const client of clients) client.abandon()
    watch.end()
  }
  return {
    violations: watch.violations,
    late: watch.tooLate,
    seen: wires.seen,
    injected: [...wires.injected],
    grants: watch.grants,
  }
}

async function openClients({ scene, store, library, isMirrored }: SceneRun, wires: Wires): Promise<Client[]> {
  const ids = ['a', 'b', 'c'].slice(0, scene.clients)
  return Promise.all(
    ids.map(async (id, at) => {
      const ports = await wires.portsFor(id)
      return openClient(library, { id, store, ports, package: (at % 2 === 0) === isMirrored ? 1 : 0 })
    }),
  )
}

/** Connects a client, and makes it do everything once that it does only once. */
async function warm(client: Client, name: string): Promise<void> {
  await client.connected()
  let failure: unknown
  for (let tries = 0; tries < 20; tries += 1) {
    const result = await client.patient.acquire(`${name}:${client.id}`, { timeoutSeconds: 1 }).catch((error) => {
      failure = error
    })
    if (result?.acquired) return void (await result.lock.release().catch(() => {}))
    await pause(50)
  }
  throw new Error(`client ${client.id} cannot connect`, { cause: failure })
}

interface Aftermath {
  readonly play: Play
  readonly fresh: Client
  readonly ground: Ground
  granted(): void
}

/**
 * After the scene, a client without faults is granted every lock, with a higher token. It keeps it while the messages
 * that were held back arrive. Then nothing is left in the store.
 */
async function checkAfter({ play, fresh, ground, granted }: Aftermath): Promise<void> {
  const { watch, names } = play
  await Promise.all(
    names.map(async (name) => {
      const before = Math.max(0, ...watch.tokensOf(name))
      const waitMs = TTL_MS + WAITER_MS + CALL_MS * 2 + SLACK_MS
      const options = { timeoutSeconds: FRESH_TTL_SECONDS, blockingTimeoutSeconds: seconds(waitMs) }
      const askedAt = nowMs()
      const result = await play.settles('z acquire', waitMs + CALL_MS, () => fresh.lock.acquire(name, options))
      if (!result?.acquired) return watch.late(`a fresh client is not granted ${name} within ${waitMs} ms`)
      const { lock: lease } = result
      watch.granted({ client: 'z', name, lease, askedAt })
      granted()
      if (lease.fencingToken <= before) watch.violation(`falling token: ${lease.fencingToken} after ${before}`)
      await pause(AFTERMATH_MS)
      const shown = await play.settles('z inspect', SLACK_MS, () => fresh.lock.inspect(name))
      const tokens = shown?.leases.map(({ fencingToken }) => fencingToken) ?? []
      if (shown !== undefined && (tokens.length !== 1 || tokens[0] !== lease.fencingToken)) {
        watch.violation(`${name} is held by z with token ${lease.fencingToken}, but the store shows ${tokens}`)
      }
      watch.ended(lease)
      const released = await play.settles('z release', CALL_MS * 2, () => lease.release())
      if (released === false) watch.violation(`the fresh client lost ${name}: ${lease.signal.reason}`)
      await checkEmpty({ play, fresh, ground }, name)
    }),
  )
}

/** Long enough for a busy machine: this client must not lose its lease. */
const FRESH_TTL_SECONDS = LONGEST_TTL_SECONDS
/** How long the fresh client holds the lock while late messages arrive. */
const AFTERMATH_MS = 120

async function checkEmpty({ play, fresh, ground }: Omit<Aftermath, 'granted'>, name: string): Promise<void> {
  const deadline = nowMs() + Math.max(TTL_MS, WAITER_MS) + SLACK_MS
  for (;;) {
    const shown = await play.settles('z inspect', CALL_MS, () => fresh.lock.inspect(name))
    const isShown = shown?.leases.length !== 0 || shown.waiters.length !== 0
    const left = isShown ? [JSON.stringify(shown)] : await ground.left(name)
    if (left.length === 0) return
    if (nowMs() > deadline) return play.watch.late(`left in the store: ${left}`)
    await pause(100)
  }
}
