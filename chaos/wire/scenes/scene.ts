import type { Client, StoreName } from '../client.ts'
import type { Play } from '../play.ts'

export interface Scene {
  readonly name: string
  readonly stores: readonly StoreName[]
  readonly clients: number
  readonly locks?: number
  /** How many leases its clients get without faults, at least. @default one each */
  readonly grants?: number
  /** If it is longer than TTL_MS. */
  readonly longestTtlMs?: number
  /** The clients connect in the scene, so that every message of their set-up is explored, too. */
  readonly isCold?: true
  /** It changes the servers, so it needs its own: one (three for Redlock), or a master with a replica. */
  readonly ground?: 'own' | 'pair'
  play(play: Play, clients: readonly Client[], servers: SceneServers): Promise<void>
}

export interface SceneServers {
  flushScripts(): Promise<void>
  /** Until it is called with false. */
  refuseWrites(isRefusing: boolean): Promise<void>
  /** Moves the role of the master to the replica. No write is lost. */
  failOver(): Promise<void>
  /** A server hangs, until the function that it returns is called. */
  hang(server: number): () => void
}

/** The stores of most scenes. */
export const ALL: readonly StoreName[] = ['redis', 'redlock', 'postgres', 'advisory']

export const STORES: readonly StoreName[] = [...ALL, 'cluster']

/** The first lock name and the clients, by their names. */
export const parts = (play: Play, clients: readonly Client[]) => ({
  name: play.names[0] as string,
  a: clients[0] as Client,
  b: clients[1] as Client,
  c: clients[2] as Client,
})
