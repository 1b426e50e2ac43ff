import { type Server, startRedis } from '../../test/harness/servers.ts'
import { askRedis } from '../../test/harness/wire.ts'
import type { Draw } from '../draw.ts'
import { privateBytes } from './server-memory.ts'
import type { Left, SoakStore, StoreSample } from './store.ts'

/** The keys that stay: the last token. See protocol/redis/README.md. */
const STAYS = /^holdfast:token$/
/** Enough to see what it is. */
const MOST_SHOWN = 20

export async function openRedis(): Promise<SoakStore> {
  const server: Server = await startRedis()
  const ask = (...command: string[]) => askRedis({ port: server.port, timeoutMs: 10_000 }, ...command)
  const field = (info: string, name: string): string => new RegExp(`^${name}:(.*?)\r?$`, 'm').exec(info)?.[1] ?? ''
  // Without the one that asks.
  const connectionsIn = (info: string): number => Number(field(info, 'connected_clients')) - 1
  return {
    url: server.url,
    pid: server.pid,
    version: `Redis ${field(String(await ask('INFO', 'server')), 'redis_version')}`,

    async sample(): Promise<StoreSample> {
      const info = String(await ask('INFO'))
      return {
        bytes: Number(field(info, 'used_memory')),
        processBytes: privateBytes(server.pid),
        entries: Number(await ask('DBSIZE')),
        dead: 0,
        connections: connectionsIn(info),
      }
    },

    connections: async () => connectionsIn(String(await ask('INFO', 'clients'))),

    async cut(draw: Draw): Promise<string> {
      const type = draw.one(['normal', 'pubsub'])
      if (draw.chance(0.3)) {
        await ask('CLIENT', 'KILL', 'TYPE', type)
        return `all ${type}`
      }
      const clients = String(await ask('CLIENT', 'LIST', 'TYPE', type))
        .trim()
        .split('\n')
      const id = / ?id=(\d+)/.exec(draw.one(clients))?.[1]
      if (id !== undefined) await ask('CLIENT', 'KILL', 'ID', id)
      return `one ${type}`
    },

    async left(): Promise<Left> {
      const keys = ((await ask('KEYS', '*')) as string[]).sort()
      return {
        wrong: keys
          .filter((key) => !STAYS.test(key))
          .slice(0, MOST_SHOWN)
          .map((key) => `the key ${key}`),
        stays: keys.filter((key) => STAYS.test(key)).map((key) => `the key ${key}`),
      }
    },

    [Symbol.asyncDispose]: () => server[Symbol.asyncDispose](),
  }
}
