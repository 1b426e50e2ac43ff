import { Draw } from '../../draw.ts'
import { type Client, openClient, type StoreName } from '../../wire/client.ts'
import { Grounds } from '../../wire/grounds.ts'
import type { Judge } from '../judge.ts'
import { OPERATIONS } from '../operations.ts'
import type { Ground, Stage, Target } from '../target.ts'
import { HostileProxy, type Hostility } from './hostile-proxy.ts'

/** The real drivers, on the real client packages, behind a proxy that changes the replies of a real server. */
export const replies: Target = {
  name: 'replies',
  jobs: 12,
  async open(ground: Ground): Promise<Stage> {
    const { library, servers } = ground
    const grounds = new Grounds(library, servers)
    // Its nodes do not vote at first.
    grounds.take({}, 'redlock').catch(() => {})
    const run = async (draw: Draw, judge: Judge): Promise<void> => {
      const store = draw.weighted(STORES)
      const { ports, protocol, fresh } = await grounds.take({}, store)
      const other = await fresh()
      const request = { id: judge.name, store, package: draw.one([0, 1] as const) }
      const isPostgresJs = request.package === 1 && (store === 'postgres' || store === 'advisory')
      const isIoredis = request.package === 0 && (store === 'redis' || store === 'redlock')
      const hostility = hostilityFrom(draw, isPostgresJs, isIoredis)
      // Draws of its own: the number of replies depends on the machine.
      await using proxy = new HostileProxy(protocol, new Draw(`${judge.name}/replies`), hostility)
      const isMinority = store === 'redlock' && draw.chance(0.4)
      const names = draw.some(Object.keys(OPERATIONS), draw.whole(1, 3))
      judge.note(`${store}, package ${request.package}, ${names.join(' ')}, ${hostility.kind} at ${hostility.at}`)
      // Before: the messages that open a connection are changed, too.
      const isArmedFirst = draw.chance(0.2)
      if (isArmedFirst) proxy.arm()
      const through = await proxy.listen(ports, isMinority ? 1 : ports.length)
      const client = await openClient(library, { ...request, ports: through })
      if (!isArmedFirst) await warm(client, judge)
      proxy.arm()
      const subject = { library, judge, draw, client, other: other.patient, name: judge.name }
      for (const name of names) await OPERATIONS[name]?.(subject)
      if (draw.chance(0.5)) proxy.disarm()
      await judge.settles('close', () => client.lock.close())
      client.abandon()
      for (const text of proxy.done) judge.note(text)
    }
    return { run, [Symbol.asyncDispose]: () => grounds[Symbol.asyncDispose]() }
  },
}

const STORES: readonly (readonly [StoreName, number])[] = [
  ['redis', 3],
  ['redlock', 2],
  ['postgres', 3],
  ['advisory', 2],
]

/** ioredis ends the process at a reply to no command, which a reply that ends too early makes of the next one. */
const hostilityFrom = (draw: Draw, keepsShape: boolean, isIoredis: boolean): Hostility => ({
  keepsShape,
  at: draw.chance(0.75) ? draw.whole(0, 7) : undefined,
  kind: draw.weighted([
    ['changed', 8],
    ['cut', 1],
    [isIoredis ? 'cut' : 'garbled', 1],
  ]),
})

/** Connects the client, so that the first reply that counts is one to the operation. */
async function warm(client: Client, judge: Judge): Promise<void> {
  const result = await client.lock.acquire(`${judge.name}.warm`, { timeoutSeconds: 1 }).catch(() => undefined)
  if (result?.acquired) await result.lock.release().catch(() => {})
}
