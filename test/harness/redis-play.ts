import assert from 'node:assert/strict'
import fc from 'fast-check'
import type { Redis } from 'ioredis'
import type { AcquireAnswer, Claim, LeaseRef, StopListening } from '../../src/core/driver.ts'
import type { RedlockNode } from '../../src/drivers/redis/driver.ts'
import { lockKeys } from '../../src/drivers/redis/keys.ts'
import type { RedisDriver } from '../../src/drivers/redis.ts'
import { newCall } from '../../src/testing/conformance/driver-calls.ts'
import { LockModel, type ModelTerms } from './lock-model.ts'

export const CLIENTS = 3
const NAMES = ['a{tag}', 'b\n"\\}']
/** Ids that must not break the format: with lines, quotes, a text like a token, a lone surrogate. */
const IDS = [
  'plain',
  'line\nline',
  '"',
  '\\',
  '",5',
  ',5',
  '\u2028\u2029',
  '\ud800',
  'é\u0000',
  ']',
  '',
  '["x",1,2,"y"]',
]
export const claimTerms = fc.array(
  fc.record({
    name: fc.nat({ max: NAMES.length - 1 }),
    exclusive: fc.boolean(),
    limit: fc.constantFrom(0, 1, 3),
    metadata: fc.boolean(),
  }),
  { minLength: IDS.length, maxLength: IDS.length },
)
const numbers = fc.array(fc.nat({ max: IDS.length - 1 }), { minLength: 1, maxLength: 5 })
const client = fc.nat({ max: CLIENTS - 1 })
export const steps = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ kind: fc.constant('acquire' as const), client, numbers, waits: fc.nat({ max: 31 }) }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('release' as const), client, numbers, byToken: fc.boolean() }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('renew' as const),
      client,
      numbers,
      alike: fc.boolean(),
      long: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('force' as const), client, numbers }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('stale' as const), client, numbers }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('listen' as const), client }) },
)
export type Terms = typeof claimTerms extends fc.Arbitrary<infer T> ? T : never
export type Step = typeof steps extends fc.Arbitrary<infer T> ? T : never

/** The hash and the sorted set of a lock have exactly the leases and waiters of the model. */
async function checkKeys(control: Redis, name: string, { leases, waiters }: LockModel): Promise<void> {
  const { data, order } = lockKeys('lock:', name)
  const [fields, members] = [await control.hgetall(data), await control.zrange(order, '0', '-1')]
  const readers = leases.filter(({ exclusive }) => !exclusive)
  const idsOf = (kind: string, all: readonly { id: string }[]) => all.map(({ id }) => kind + JSON.stringify(id))
  const expected = [...idsOf('l', readers), ...idsOf('w', waiters)].sort()
  assert.deepEqual([...members].sort(), expected)
  assert.deepEqual(
    Object.keys(fields)
      .filter((field) => !['n', 'seq', 't'].includes(field))
      .sort(),
    expected,
  )
  const permits = readers.reduce((sum, reader) => sum + reader.permits, 0)
  assert.equal(Number(fields['n'] ?? 0), permits)
}

const repeated = (numbers: readonly number[]): number[] =>
  Array.from({ length: 20 }, (_, at) => numbers[at % numbers.length] as number)

/**
 * The clients and the model of a random history. While `fault` is set, calls may fail with that error. A call that
 * fails must have done nothing.
 */
export class RedisPlay {
  fault: RegExp | undefined
  /** How many calls have failed. */
  failures = 0
  /** Whether some lists of renewals are long. These go through renew.lua, and what it leaves through leases.lua. */
  renewsLongLists = false
  readonly #control: Redis
  readonly #drivers: readonly RedisDriver[]
  readonly #terms: Terms
  readonly #listening: boolean[] = Array.from({ length: CLIENTS }, () => false)
  readonly #stops: (StopListening | undefined)[] = []
  readonly #models = NAMES.map(() => new LockModel(this.#listening))
  /** How often each claim has ended. The next one gets a new id, because an id is never used again. */
  readonly #lives = IDS.map(() => 0)
  readonly #ended: LeaseRef[] = []
  /** By claim id. */
  readonly #tokens = new Map<string, number>()
  readonly #largest = NAMES.map(() => 0)

  constructor(control: Redis, drivers: readonly RedisDriver[], terms: Terms) {
    this.#control = control
    this.#drivers = drivers
    this.#terms = terms
  }

  async step(step: Step): Promise<void> {
    if (step.kind === 'listen') return this.#toggle(step.client)
    const driver = this.#drivers[step.client] as RedisDriver
    if (step.kind === 'stale') {
      const refs = this.#ended.slice(-step.numbers.length)
      const touch = (): void => {
        for (const { lockName } of refs) this.#model(NAMES.indexOf(lockName)).renew('no holder')
      }
      const ended = await this.#answersTo(driver.release(refs))
      if (ended !== undefined) {
        for (const answer of ended) assert.equal(answer, false)
        touch()
      }
      const renewals = refs.map((ref) => ({ ...ref, fencingToken: ref.fencingToken ?? 1, ttlMs: TTL_MS }))
      const renewed = await this.#answersTo(driver.renew(renewals))
      if (renewed === undefined) return
      for (const answer of renewed) assert.equal(answer, 'lost')
      touch()
    } else if (step.kind === 'renew') {
      const asked = step.long && this.renewsLongLists ? repeated(step.numbers) : step.numbers
      const renewals = asked.map((number, at) => ({
        ...this.#ref(number),
        fencingToken: this.#tokens.get(this.#id(number)) ?? 1,
        ttlMs: step.alike ? TTL_MS : TTL_MS + at,
      }))
      const answers = await this.#answersTo(driver.renew(renewals))
      if (answers === undefined) return
      const expected = asked.map((number) => (this.#modelOf(number).renew(this.#id(number)) ? 'renewed' : 'lost'))
      assert.deepEqual(answers, expected)
    } else if (step.kind === 'release') {
      const refs = step.numbers.map((number) => this.#ref(number, step.byToken))
      const answers = await this.#answersTo(driver.release(refs))
      if (answers === undefined) return
      const expected = step.numbers.map((number) => this.#modelOf(number).release(this.#id(number)))
      assert.deepEqual(answers, expected)
    } else {
      const asked = step.numbers.map((number, at) => ({
        number,
        waits: step.kind === 'acquire' && ((step.waits >> at) & 1) === 1,
        forces: step.kind === 'force' && this.#termsOf(number).exclusive,
      }))
      const answers = await this.#answersTo(
        driver.acquire(
          asked.map((each) => this.#claim(each)),
          newCall(),
        ),
      )
      if (answers === undefined) return
      const expected = asked.map((each) =>
        this.#modelOf(each.number).acquire(this.#termsOf(each.number), { ...each, client: step.client }),
      )
      for (const [at, each] of expected.entries()) judge(answers[at], each)
    }
  }

  /** Undefined if the call failed because of the fault. */
  async #answersTo<T>(call: Promise<readonly (T | Error)[]>): Promise<readonly (T | Error)[] | undefined> {
    if (this.fault === undefined) return call
    const answers = await call.catch((error: Error) => [error])
    const failed = answers.find((answer): answer is T & Error => answer instanceof Error)
    if (failed === undefined) return answers
    assert.match((failed as Error).message, this.fault)
    for (const answer of answers) assert.ok(answer instanceof Error, 'a part of the list was done')
    this.failures += 1
    return undefined
  }

  /** The names of all claims that hold a lock now, each with its token. */
  held(): Map<string, number | undefined> {
    const ids = this.#models.flatMap(({ leases }) => leases.map(({ id }) => id))
    return new Map(ids.map((id) => [id, this.#tokens.get(id)]))
  }

  waiting(): readonly string[] {
    return this.#models.flatMap(({ waiters }) => waiters.map(({ id }) => id))
  }

  idsOf(numbers: readonly number[]): readonly string[] {
    return numbers.map((number) => this.#id(number))
  }

  /** The server has the leases and waiters of the model, and every new token of a lock is above all earlier ones. */
  async compare(): Promise<void> {
    const shown = await (this.#drivers[0] as RedlockNode).inspectNames(NAMES)
    for (const [index, name] of NAMES.entries()) {
      const model = this.#model(index)
      await checkKeys(this.#control, name, model)
      const leases = shown.leases.filter(({ lockName }) => lockName === name)
      const waiters = shown.waiters.filter(({ lockName }) => lockName === name)
      assert.deepEqual(leases.map(({ claimId }) => claimId).sort(), model.leases.map(({ id }) => id).sort())
      assert.deepEqual(
        waiters.map(({ claimId }) => claimId),
        model.waiters.map(({ id }) => id),
      )
      for (const { claimId, fencingToken } of [...leases].sort((a, b) => a.fencingToken - b.fencingToken)) {
        // In one list, a claim can lose the lock to a claim with force and take it back.
        if (this.#tokens.get(claimId) === fencingToken) continue
        assert.ok(fencingToken > (this.#largest[index] as number), `a token of ${name} fell`)
        this.#largest[index] = fencingToken
        this.#tokens.set(claimId, fencingToken)
      }
    }
    this.#bury()
  }

  async end(): Promise<void> {
    const driver = this.#drivers[0] as RedisDriver
    await driver.release(IDS.map((_, number) => this.#ref(number)))
    for (let number = 0; number < IDS.length; number += 1) this.#modelOf(number).release(this.#id(number))
    await this.compare()
  }

  async #toggle(client: number): Promise<void> {
    const stop = this.#stops[client]
    this.#stops[client] = stop ? undefined : await this.#drivers[client]?.listen?.(DEAF)
    await stop?.()
    this.#listening[client] = stop === undefined
    const heard = this.#listening.filter(Boolean).length
    // The server notices a closed connection late.
    while (((await this.#control.call('PUBSUB', 'CHANNELS', 'holdfast:wake:*')) as string[]).length !== heard);
  }

  /** Claims without a lease or a place get a new id. */
  #bury(): void {
    IDS.forEach((_, number) => {
      const id = this.#id(number)
      const { leases, waiters } = this.#modelOf(number)
      if ([...leases, ...waiters].some((each) => each.id === id) || !this.#tokens.has(id)) return
      this.#ended.push(this.#ref(number, true))
      this.#lives[number] = (this.#lives[number] as number) + 1
    })
  }

  #claim({ number, waits, forces }: { number: number; waits: boolean; forces: boolean }): Claim {
    const { metadata } = this.#terms[number] as Terms[number]
    const { id, exclusive, limit, permits } = this.#termsOf(number)
    return {
      lockName: this.#ref(number).lockName,
      claimId: id,
      holderId: `holder of ${id}`,
      mode: exclusive ? 'exclusive' : 'shared',
      ...(limit > 0 && { limit }),
      permits,
      ttlMs: TTL_MS,
      ...(metadata && { metadata: { of: id } }),
      waiterTtlMs: waits ? TTL_MS : 0,
      ...(forces && { forceUpTo: Number.MAX_SAFE_INTEGER }),
    }
  }

  #termsOf(number: number): ModelTerms {
    const { exclusive, limit } = this.#terms[number] as Terms[number]
    return { id: this.#id(number), exclusive, limit: exclusive ? 0 : limit, permits: exclusive || limit < 3 ? 1 : 2 }
  }

  #ref(number: number, byToken = false): LeaseRef {
    const lockName = NAMES[(this.#terms[number] as Terms[number]).name] as string
    const fencingToken = this.#tokens.get(this.#id(number))
    return { lockName, claimId: this.#id(number), ...(byToken && fencingToken !== undefined && { fencingToken }) }
  }

  #id(number: number): string {
    return `${IDS[number]}${this.#lives[number] === 0 ? '' : this.#lives[number]}`
  }

  #modelOf(number: number): LockModel {
    return this.#model((this.#terms[number] as Terms[number]).name)
  }

  #model(index: number): LockModel {
    return this.#models[index] as LockModel
  }
}

function judge(answer: AcquireAnswer | Error | undefined, expected: { granted: boolean; ahead?: number }): void {
  assert.ok(answer !== undefined && !(answer instanceof Error), String(answer))
  assert.equal(answer.granted, expected.granted)
  if (!answer.granted) assert.equal(answer.ahead, expected.ahead)
}

/** Far longer than a history: nothing expires. */
const TTL_MS = 600_000
const DEAF = { wake() {}, granted() {}, lost() {}, disconnected() {} }
