import { checkAfter, confirm } from './aftermath.ts'
import { type Client, openClient, type StoreName } from './client.ts'
import type { Fault } from './fault.ts'
import type { Ground } from './grounds.ts'
import type { Library } from './library.ts'
import { Play, pause } from './play.ts'
import type { Scene } from './scenes/scene.ts'
import { TTL_MS } from './settings.ts'
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
  await using wires = new Wires(ground.protocol, ground.ports, run.faults)
  // A session keeps its locks until the server sees its unlock or its end. Both may be held back.
  const watch = new Watch(() => (run.store === 'advisory' ? wires.lastHeldBackAt : 0))
  const id = Math.random().toString(36).slice(2, 10)
  const tagOf = (at: number): string => (ground.tags ? `{${ground.tags[at % ground.tags.length]}}` : '')
  const names = Array.from({ length: scene.locks ?? 1 }, (_, at) => `wire:${scene.name}:${id}:${at}${tagOf(at)}`)
  const fresh = await ground.fresh()
  const confirmations: Promise<void>[] = []
  const hurt = new Set([...run.faults.keys()].map((place) => place.charAt(0)))
  const play = new Play({ names, watch, hurt }, (granted) => {
    wires.granted(granted.client)
    // In a failover, the fresh client may ask the old master.
    if (scene.ground !== 'pair') confirmations.push(confirm(granted, watch, fresh))
  })
  const clients = await openClients(run, wires)
  try {
    if (!scene.isCold) {
      // On every server of a Cluster.
      const warming = (ground.tags ?? ['']).map((_, at) => `wire:${scene.name}:${id}:warm${tagOf(at)}`)
      await Promise.all(clients.flatMap((client) => warming.map((name) => warm(client, name))))
    }
    wires.begin()
    await scene.play(play, clients, {
      flushScripts: ground.flushScripts,
      refuseWrites: ground.refuseWrites,
      hang: (server) => wires.hang(server),
      failOver: async () => wires.redirect(await ground.failOver()),
    })
    await Promise.all(confirmations)
    const last = scene.ground === 'pair' ? await ground.fresh() : fresh
    const longestTtlMs = Math.max(TTL_MS, scene.longestTtlMs ?? 0)
    await checkAfter({ play, fresh: last, ground, longestTtlMs, granted: () => wires.granted(last.id) })
    if (last !== fresh) last.abandon()
  } finally {
    for (const client of [...clients, fresh]) client.abandon()
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

async function openClients({ scene, store, library, ground, isMirrored }: SceneRun, wires: Wires): Promise<Client[]> {
  const ids = ['a', 'b', 'c'].slice(0, scene.clients)
  return Promise.all(
    ids.map(async (id, at) => {
      const ports = await wires.portsFor(id)
      const announced = ground.tags && { announced: ground.ports }
      return openClient(library, { id, store, ports, ...announced, package: (at % 2 === 0) === isMirrored ? 1 : 0 })
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
