import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { LeaderElection, OnceOnly, UnsupportedError } from '../../src/index.ts'
import { makeFolder } from '../harness/folders.ts'
import { gate } from '../harness/gate.ts'

/** Elections and once-only jobs of two processes that have only a URL, on every store. */

const folder = makeFolder('every-store')
afterAll(() => folder.remove())

const { redis, cluster, postgres = '' } = inject('servers')
const hosts = (urls: readonly string[] | undefined): string => (urls ?? []).map((url) => new URL(url).host).join(',')

const urls: [name: string, url: string][] = [
  ['memory', `memory:${randomUUID()}`],
  ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
  ['redis', redis?.[0] ?? ''],
  ['redis cluster', `redis+cluster://${hosts(cluster)}`],
  ['redlock', `redlock://${hosts(redis?.slice(0, 3))}?persistent=1&prefix=every-store:`],
  ['postgres', postgres],
  ['postgres-advisory', postgres.replace(/^postgres(ql)?:/, 'postgres+advisory:')],
]
const PATIENCE = 60_000

describe.each(urls)('%s', (name, url) => {
  const isAdvisory = name === 'postgres-advisory'

  it(
    'an election: who leads is seen by others, with its value; who resigns is followed, who was demoted told',
    async () => {
      const election = { name: randomUUID(), url }
      await using a = new LeaderElection<{ port: number }>({ ...election, holderId: 'a' })
      await using b = new LeaderElection<{ port: number }>({ ...election, holderId: 'b' })
      const demoted: string[] = []
      const first = await a.campaign({
        ...(!isAdvisory && { value: { port: 8080 } }),
        onDemoted: (_, { code }) => demoted.push(code),
      })
      const changes = b.observe({ everySeconds: 0.05 })
      let told = (await changes.next()).value
      // With several servers, a lease that was just granted may not be visible yet.
      while (told === undefined) told = (await changes.next()).value
      expect(told).toMatchObject({ holderId: 'a', term: first.term })
      expect(told.value).toEqual(isAdvisory ? undefined : { port: 8080 })
      const succession = b.campaign()
      const next = changes.next()
      expect(await first.resign()).toBe(true)
      expect(demoted).toEqual(['NOT_HELD'])
      const second = await succession
      expect(second.term).toBeGreaterThan(first.term)
      // It may have seen that there is no leader in between.
      let seen = (await next).value
      while (seen?.holderId !== 'b') seen = (await changes.next()).value
      expect(seen.term).toBe(second.term)
      await changes.return?.()
    },
    PATIENCE,
  )

  it(
    'a job: run once, its result kept for others; a failed one is run again',
    async () => {
      await using a = new OnceOnly({ url })
      await using b = new OnceOnly({ url })
      const key = randomUUID()
      const day = { forSeconds: 30 }
      if (isAdvisory) {
        await expect(a.once(key, () => 1, day)).rejects.toBeInstanceOf(UnsupportedError)
        return
      }
      const fails = async (): Promise<never> => {
        throw new Error('no paper')
      }
      await expect(a.once(key, fails, day)).rejects.toThrow('no paper')
      const begun = gate()
      const result = { name: 'ä', list: [1, null, { deep: true }] }
      const run = a.once(
        key,
        async () => {
          begun.open()
          return result
        },
        day,
      )
      await begun.opened
      const waiting = b.once(key, () => 'not this', day)
      expect(await Promise.all([run, waiting, b.once(key, () => 'nor this', day)])).toEqual([result, result, result])
      expect(await b.forget(key)).toBe(true)
      expect(await b.once(key, () => 'again', day)).toBe('again')
      const [ticking, go] = [gate(), gate()]
      const ticks = (jobs: OnceOnly, fn: () => unknown) => jobs.everyTick(key, fn, { forSeconds: 30 })
      const running = ticks(a, () => {
        ticking.open()
        return go.opened
      })(new Date(0))
      await ticking.opened
      const same = ticks(b, () => 1)(new Date(0))
      expect(await ticks(b, () => 1)(new Date(60_000))).toEqual({ ran: false, reason: 'overlap' })
      go.open()
      expect(await running).toEqual({ ran: true, result: undefined })
      expect(await same).toEqual({ ran: false, reason: 'elsewhere' })
      expect(await ticks(b, () => 2)(new Date(120_000))).toEqual({ ran: true, result: 2 })
    },
    PATIENCE,
  )
})
