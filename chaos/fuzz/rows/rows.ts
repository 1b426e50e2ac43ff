import type { Draw } from '../../draw.ts'
import { runCli } from '../cli.ts'
import type { Judge } from '../judge.ts'
import { OPERATIONS } from '../operations.ts'
import type { Ground, Stage, Target } from '../target.ts'
import { checkResult } from '../valid.ts'
import { openAdvisoryRows } from './advisory-rows.ts'
import { openPostgresRows } from './postgres-rows.ts'
import { openRedisRows } from './redis-rows.ts'
import type { RowClient, RowStore } from './row-store.ts'
import { openSqliteRows } from './sqlite-rows.ts'

/** Keys and rows that others wrote, under the names and in the tables of the library. */
export const rows: Target = {
  name: 'rows',
  jobs: 4,
  async open(ground: Ground): Promise<Stage> {
    const { library, servers } = ground
    const stores = await Promise.all([
      openRedisRows(library, 1),
      openRedisRows(library, 3),
      openPostgresRows(library, servers.postgres),
      openAdvisoryRows(library, servers.postgres),
    ])
    return {
      async run(draw, judge) {
        const kind = draw.weighted(KINDS)
        const store = stores.find(({ name }) => name === kind)
        if (store !== undefined) return runOn(store, ground, draw, judge)
        const own = await openSqliteRows(library, draw)
        try {
          await runOn(own, ground, draw, judge)
        } finally {
          await own[Symbol.asyncDispose]()
        }
      },
      async [Symbol.asyncDispose]() {
        await Promise.all(stores.map((store) => store[Symbol.asyncDispose]()))
      },
    }
  },
}

const KINDS: readonly (readonly [string, number])[] = [
  ['redis', 4],
  ['redlock', 2],
  ['postgres', 4],
  ['advisory', 1],
  ['sqlite', 3],
]

async function runOn(store: RowStore, ground: Ground, draw: Draw, judge: Judge): Promise<void> {
  const client = draw.one(store.clients)
  const { library } = ground
  const name = judge.name
  const names = draw.some(Object.keys(OPERATIONS), draw.whole(1, 3))
  judge.note(`${store.name}, ${names.join(' ')}`)
  // A lease from before: it is renewed and released in what others wrote.
  // Others may have broken what all locks share, such as a counter.
  const take = () => client.lock.acquire(name, { timeoutSeconds: 2 })
  const before = draw.chance(0.3) ? await judge.settles('acquire', take) : undefined
  const { isHeldByOther = false, undo } = await store.write(draw, judge, name)
  try {
    if (isHeldByOther) await checkRefused(judge, client, name)
    if (before?.acquired) {
      await judge.settles('extend', () => before.lock.extend(2))
      await judge.settles('release', () => before.lock.release())
      judge.check(!before.lock.held, () => 'a lease is held after its release')
    }
    // The other client of `wait` and `force` sees the same rows.
    const subject = { library, judge, draw, client, other: (store.clients[0] as RowClient).lock, name }
    for (const each of names) await OPERATIONS[each]?.(subject)
    if (store.url !== undefined && draw.chance(0.06)) await list(ground, judge, store.url, draw)
  } finally {
    await undo?.()
  }
}

/** A lock of another client is contention: never an error, and never a grant. */
async function checkRefused(judge: Judge, { lock }: RowClient, name: string): Promise<void> {
  const result = await judge.settles('acquire', () => lock.acquire(name, { timeoutSeconds: 0.6 }), {
    refuses: ['INVALID_ARGUMENT', 'STORE_UNAVAILABLE'],
  })
  checkResult(judge, result, 600)
  judge.check(result?.acquired !== true, () => 'granted although another client holds the lock')
}

async function list(ground: Ground, judge: Judge, url: string, draw: Draw): Promise<void> {
  const args = ['ls', '--url', url, ...(draw.chance(0.5) ? ['--json'] : [])]
  const { code, output } = await runCli(ground.dist, args)
  judge.outcomes.push(`exit ${code}`)
  judge.check(code === 0 || code === 69, () => `holdfast ls ended with ${code}: ${output}`)
}
