import assert from 'node:assert/strict'
import { Redis } from 'ioredis'
import pg from 'pg'
import { describe, it } from 'vitest'
import type { Claim, Driver } from '../../src/core/driver.ts'
import { createMemoryStore, memoryDriver } from '../../src/drivers/memory.ts'
import { migratePostgres, postgresDriver } from '../../src/drivers/postgres.ts'
import { lockKeys } from '../../src/drivers/redis/keys.ts'
import { redisDriver } from '../../src/drivers/redis.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { type SeededRandom, seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'
import { shiftedClock } from '../harness/clock-shim.ts'
import { startPostgres, startRedis } from '../harness/servers.ts'

/**
 * Random histories of a shared lock and of a semaphore with more members than one step of a script cleans up (256).
 * Members expire, and ask again before anything has cleaned them up. After every step, the store shows exactly the
 * members of the model, counts each of them once, and admits neither more permits than the limit nor fewer. `SEED=`
 * replays a history.
 */
const SEED = Number(process.env['SEED'] ?? 5)
/** Of each store. PostgreSQL needs several times as long. */
const HISTORIES = { memory: 2, redis: 2, postgres: 1 }
const STEPS = 30

const MEMBERS = 900
/** Much longer than a history really takes. */
const SHORT_MS = 100_000
const LONG_MS = 1_000_000
const FOREVER_MS = 100_000_000
/** As many calls as it takes to clean up all members, and one more. */
const MOST_CALLS = Math.ceil(MEMBERS / 256) + 1

interface Store extends AsyncDisposable {
  readonly driver: Driver
  /** Lets time pass on the clock of the store. */
  pass(ms: number): Promise<void> | void
  /** How many permits the store has counted, and how many its members have, also those that it has not cleaned up. */
  permitsOf?(lockName: string): Promise<readonly [counted: number, stored: number]>
}

const STORES: Readonly<Record<keyof typeof HISTORIES, () => Promise<Store>>> = {
  async memory() {
    const time = new VirtualTime()
    const driver = memoryDriver({ store: createMemoryStore(time.clock()) })
    return { driver, pass: (ms) => time.run(ms), [Symbol.asyncDispose]: () => driver.close() }
  },

  async redis() {
    const clock = await shiftedClock()
    const server = await startRedis({ clock })
    const client = new Redis(server.url)
    const driver = redisDriver({ client, onWarning() {} })
    return {
      driver,
      pass: passing(clock.shift),
      async permitsOf(lockName) {
        const fields = await client.hgetall(lockKeys('lock:', lockName).data)
        return [Number(fields['n'] ?? 0), Object.keys(fields).filter((field) => field.startsWith('l')).length]
      },
      async [Symbol.asyncDispose]() {
        await driver.close()
        client.disconnect()
        await server[Symbol.asyncDispose]()
        clock[Symbol.dispose]()
      },
    }
  },

  async postgres() {
    const clock = await shiftedClock()
    const server = await startPostgres({ clock })
    const client = new pg.Pool({ connectionString: server.url, max: 2 })
    await migratePostgres({ client })
    const driver = postgresDriver({ client })
    return {
      driver,
      pass: passing(clock.shift),
      async [Symbol.asyncDispose]() {
        await driver.close()
        await client.end()
        await server[Symbol.asyncDispose]()
        clock[Symbol.dispose]()
      },
    }
  },
}

/** The offset of a clock that only goes forwards. */
function passing(shift: (offsetMs: number) => void): (ms: number) => void {
  let offsetMs = 0
  return (ms) => {
    offsetMs += ms
    shift(offsetMs)
  }
}

describe.each(['memory', 'redis', 'postgres'] as const)('%s: histories of many members', (name) => {
  it('permits never drift, and the last member lets a writer in', async () => {
    await using store = await STORES[name]()
    const count = Number(process.env['HISTORIES'] ?? HISTORIES[name])
    for (let history = 0; history < count; history += 1) {
      const random = seededRandom(SEED + history)
      const play = new Play(store, `members ${history}`, history % 2 === 0 ? 700 : 0)
      await play.begin()
      for (let step = 0; step < STEPS; step += 1) await play.step(random)
      await play.end()
    }
  }, 120_000)
})

interface Member {
  readonly token: number
  readonly endMs: number
}

class Play {
  readonly #store: Store
  readonly #lockName: string
  /** 0: none. */
  readonly #limit: number
  readonly #members = new Map<string, Member>()
  #nowMs = 0

  constructor(store: Store, lockName: string, limit: number) {
    this.#store = store
    this.#lockName = lockName
    this.#limit = limit
  }

  /** A member that stays: the others that expire are then left to be cleaned up one by one. */
  begin(): Promise<void> {
    return this.#acquire(['member 0'], FOREVER_MS)
  }

  async step(random: SeededRandom): Promise<void> {
    const { driver } = this.#store
    const some = (): string[] => {
      const first = random.whole(0, MEMBERS - 1)
      const count = random.chance(0.4) ? random.whole(300, 700) : random.whole(1, 20)
      return Array.from({ length: count }, (_, at) => `member ${1 + ((first + at) % MEMBERS)}`)
    }
    const what = random.whole(0, 9)
    if (what < 5) await this.#acquire(some(), random.chance(0.2) ? LONG_MS : SHORT_MS)
    else if (what < 7) await this.#pass(random.chance(0.3) ? SHORT_MS / 2 : SHORT_MS + 1_000)
    else {
      const held = some().flatMap((claimId) => {
        const member = this.#members.get(claimId)
        return member ? [{ lockName: this.#lockName, claimId, fencingToken: member.token }] : []
      })
      const isLive = held.map(({ claimId }) => this.#live().has(claimId))
      if (what === 7) {
        const answers = await driver.renew(held.map((ref) => ({ ...ref, ttlMs: SHORT_MS })))
        assert.deepEqual(
          answers,
          isLive.map((live) => (live ? 'renewed' : 'lost')),
        )
        for (const { claimId, fencingToken: token } of held) {
          if (this.#live().has(claimId)) this.#members.set(claimId, { token, endMs: this.#nowMs + SHORT_MS })
        }
      } else {
        assert.deepEqual(await driver.release(held), isLive)
        for (const { claimId } of held) this.#members.delete(claimId)
      }
    }
    await this.#compare()
  }

  /** When all have gone, a writer gets the lock, and then nothing is left. */
  async end(): Promise<void> {
    await this.#acquire(
      Array.from({ length: MEMBERS }, (_, at) => `member ${at}`),
      SHORT_MS,
    )
    await this.#pass(FOREVER_MS + SHORT_MS)
    const { limit: _, ...claim } = { ...this.#claim('writer', SHORT_MS), mode: 'exclusive' as const }
    assert.ok(await this.#granted(claim), 'a writer waits behind no member')
    assert.deepEqual(await this.#store.driver.release([claim]), [true])
    await this.#compare()
  }

  async #acquire(ids: readonly string[], ttlMs: number): Promise<void> {
    const claims = ids.map((claimId) => this.#claim(claimId, ttlMs))
    const answers = await this.#store.driver.acquire(claims, newCall())
    for (const [at, claim] of claims.entries()) {
      const answer = answers[at]
      assert.ok(answer !== undefined && 'granted' in answer, String(answer))
      // Room that one call has not cleaned up is found by the next ones.
      const token = answer.granted ? answer.fencingToken : this.#hasRoom() && (await this.#granted(claim))
      if (token === undefined || token === false) {
        assert.ok(!this.#hasRoom(), `${claim.claimId} was refused with ${this.#live().size} of ${this.#limit} permits`)
        continue
      }
      const { claimId } = claim
      assert.ok(this.#live().has(claimId) || this.#hasRoom(), `${claimId} was granted a permit too many`)
      this.#members.set(claimId, { token, endMs: this.#nowMs + ttlMs })
    }
  }

  /** Asks until it is granted, but not more often than it may take. */
  async #granted(claim: Claim): Promise<number | undefined> {
    for (let calls = 0; calls < MOST_CALLS; calls += 1) {
      const [answer] = await this.#store.driver.acquire([claim], newCall())
      if (answer && 'granted' in answer && answer.granted) return answer.fencingToken
    }
    return undefined
  }

  async #compare(): Promise<void> {
    const { driver, permitsOf } = this.#store
    const shown: string[] = []
    for (let after: string | undefined, isLast = false; !isLast; ) {
      const page = await driver.inspect({ lockName: this.#lockName, ...(after !== undefined && { after }) })
      shown.push(...page.leases.map(({ claimId }) => claimId))
      after = page.next
      isLast = after === undefined
    }
    assert.deepEqual(shown.sort(), [...this.#live().keys()].sort())
    const [counted, stored] = (await permitsOf?.(this.#lockName)) ?? []
    assert.equal(counted, stored, 'permits drift')
  }

  #live(): Map<string, Member> {
    return new Map([...this.#members].filter(([, { endMs }]) => endMs > this.#nowMs))
  }

  #hasRoom(): boolean {
    return this.#limit === 0 || this.#live().size < this.#limit
  }

  async #pass(ms: number): Promise<void> {
    this.#nowMs += ms
    await this.#store.pass(ms)
  }

  #claim(claimId: string, ttlMs: number): Claim {
    const limit = this.#limit === 0 ? {} : { limit: this.#limit }
    return {
      lockName: this.#lockName,
      claimId,
      holderId: 'h',
      mode: 'shared',
      permits: 1,
      ttlMs,
      waiterTtlMs: 0,
      ...limit,
    }
  }
}
