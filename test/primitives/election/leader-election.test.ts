import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, describe, expect, inject, it, vi } from 'vitest'
import { createMemoryStore, memoryDriver } from '../../../src/drivers/memory.ts'
import { openPostgresAdvisory } from '../../../src/drivers/postgres-advisory.ts'
import { openDatabase } from '../../../src/drivers/sqlite/client.ts'
import {
  AbortedError,
  ClosedError,
  LeaderElection,
  type LeaderElectionOptions,
  LeaseLostError,
  NotAcquiredError,
  NotHeldError,
  StoreError,
  type Term,
  UnsupportedError,
} from '../../../src/index.ts'
import { faultyNetwork } from '../../../src/testing/conformance/faulty-network.ts'
import { VirtualTime } from '../../../src/testing/virtual-clock.ts'
import { gate } from '../../harness/gate.ts'
import { unreadableValues } from '../../harness/unreadable.ts'

const opened: LeaderElection[] = []

function candidate(options: Partial<LeaderElectionOptions> = {}): LeaderElection {
  const election = new LeaderElection({ name: 'scheduler', driver: memoryDriver(), ...options })
  opened.push(election)
  return election
}

/** Candidates of one election, each with its own driver, as in separate processes. */
function candidates(...holderIds: string[]): LeaderElection[] {
  const driver = memoryDriver()
  return holderIds.map((holderId) => candidate({ driver, holderId }))
}

afterEach(async () => {
  for (const election of opened.splice(0)) await election.close()
})

describe('campaigning', () => {
  it('a term has a number that is its fencing token, and publishes a value', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    expect(await b.leader()).toBeUndefined()
    const term = await a.campaign({ value: { address: '10.0.0.1:80' } })
    expect(term).toMatchObject({ name: 'scheduler', holderId: 'a', held: true, value: { address: '10.0.0.1:80' } })
    expect(term.fencingToken).toBe(term.term)
    expect(a.term).toBe(term)
    expect(await b.leader()).toMatchObject({ holderId: 'a', term: term.term, value: { address: '10.0.0.1:80' } })
  })

  it('resigning aborts the signal first, then elects the next candidate with a higher term', async () => {
    const network = faultyNetwork(memoryDriver())
    const [a, b] = [candidate({ driver: network.driver }), candidate({ driver: network.driver })]
    const first = await a.campaign()
    const next = b.campaign()
    const { signal } = first
    const releasedBefore = network.counts.release.calls
    const resigned = first.resign()
    expect(signal.aborted).toBe(true)
    expect(signal.reason).toBeInstanceOf(NotHeldError)
    expect(network.counts.release.calls).toBe(releasedBefore)
    expect(await resigned).toBe(true)
    expect((await next).term).toBeGreaterThan(first.term)
    expect(await a.resign()).toBe(false)
    expect(await b.resign()).toBe(true)
  })

  it('a leader can resign while its instance drains, and that ends the drain', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    await a.campaign()
    const closing = a.close({ drainSeconds: 60 })
    expect(await a.resign()).toBe(true)
    await closing
    await expect(a.resign()).rejects.toBeInstanceOf(ClosedError)
    expect(await b.leader()).toBeUndefined()
  })

  it('a campaign waits without limit; with one it ends in an error that names the leader; 0 asks once', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    await a.campaign()
    for (const blockingTimeoutSeconds of [0, 0.05]) {
      const refused = await b.campaign({ blockingTimeoutSeconds }).catch((error: unknown) => error)
      expect(refused).toBeInstanceOf(NotAcquiredError)
      expect(refused).toMatchObject({ lockName: 'scheduler', holder: { holderId: 'a' } })
    }
    const abort = new AbortController()
    const endless = b.campaign({ signal: abort.signal })
    await sleep(50) // so that it has begun to wait
    abort.abort(new Error('enough'))
    await expect(endless).rejects.toMatchObject({ code: 'ABORTED', cause: { message: 'enough' } })
    await expect(b.campaign({ signal: abort.signal })).rejects.toBeInstanceOf(AbortedError)
  })

  it('a campaign goes on while the store is down, and wins when it is back', async () => {
    const network = faultyNetwork(memoryDriver())
    const election = candidate({ driver: network.driver, callTimeoutSeconds: 0.05 })
    network.cut()
    const campaign = election.campaign()
    await sleep(200) // several calls without an answer
    network.heal()
    expect((await campaign).held).toBe(true)
  })

  it('a campaign waits for a store that cannot be opened, at most for its blockingTimeoutSeconds', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'holdfast-election-'))
    try {
      const file = join(folder, 'locks.db')
      const inTheWay = await openDatabase(file)
      inTheWay.exec('BEGIN EXCLUSIVE')
      const election = new LeaderElection({ name: 'scheduler', url: `sqlite:${file}` })
      opened.push(election)
      await expect(election.campaign({ blockingTimeoutSeconds: 0.3 })).rejects.toBeInstanceOf(StoreError)
      const abort = new AbortController()
      const given = election.campaign({ signal: abort.signal })
      const endless = election.campaign()
      await sleep(150) // they are trying
      abort.abort()
      await expect(given).rejects.toBeInstanceOf(AbortedError)
      inTheWay.exec('ROLLBACK')
      expect((await endless).held).toBe(true)
      await election.close()
      inTheWay.close()
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  it('close ends campaigns and terms', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    const term = await a.campaign()
    const waiting = expect(b.campaign()).rejects.toBeInstanceOf(ClosedError)
    await b.close()
    await waiting
    await a.close()
    expect(term.held).toBe(false)
    expect(term.signal.aborted).toBe(true)
    expect(() => term.assertHeld()).toThrow(LeaseLostError)
    await expect(a.campaign()).rejects.toBeInstanceOf(ClosedError)
  })

  it('bad input is rejected before anything is sent', async () => {
    expect(() => candidate({ name: '' })).toThrow('name must be')
    expect(() => candidate({ timeoutSeconds: 0.01 })).toThrow('timeoutSeconds must be')
    const election = candidate()
    await expect(election.campaign({ value: new Date() })).rejects.toMatchObject({ argument: 'value' })
    await expect(election.campaign({ value: { at: Number.NaN } })).rejects.toMatchObject({ argument: 'value.at' })
    await expect(election.campaign({ value: 'x'.repeat(17_000) })).rejects.toThrow('at most 16368 bytes')
    await expect(election.campaign({ maxTermSeconds: -1 })).rejects.toMatchObject({ argument: 'maxTermSeconds' })
    await expect(election.campaign({ onDemoted: 1 as never })).rejects.toMatchObject({ argument: 'onDemoted' })
    await expect(election.run(undefined as never)).rejects.toMatchObject({ argument: 'lead' })
    expect(() => election.observe({ everySeconds: 0 })).toThrow('everySeconds must be')
  })

  it('a driver without metadata rejects a value with the reason, and elects without one', async () => {
    const driver = await openPostgresAdvisory(
      inject('servers').postgres?.replace(/^postgres(?:ql)?:/, 'postgres+advisory:') ?? '',
    )
    try {
      const election = candidate({ driver, name: 'advisory election', holderId: 'a' })
      await expect(election.campaign({ value: 1 })).rejects.toThrow(UnsupportedError)
      await expect(election.campaign({ value: 1 })).rejects.toThrow('Others can see its holderId')
      const term = await election.campaign()
      expect(await election.leader()).toMatchObject({ holderId: 'a', term: term.term, value: undefined })
      await election.close()
    } finally {
      await driver.close()
    }
  })
})

describe('demotion', () => {
  it('is reported exactly once for a loss, by the first statement after a stall, before any timer', async () => {
    const network = faultyNetwork(memoryDriver())
    const election = candidate({ driver: network.driver, timeoutSeconds: 0.2 })
    const told: unknown[] = []
    const term = await election.campaign({ onDemoted: (_, reason) => told.push(reason) })
    network.cut()
    const until = performance.now() + 250
    while (performance.now() < until); // a stall beyond the lease
    expect(term.signal.aborted).toBe(true)
    expect(term.held).toBe(false)
    expect(told).toEqual([expect.any(LeaseLostError)])
    expect(election.term).toBeUndefined()
    await sleep(100) // for every timer that is due
    expect(told).toHaveLength(1)
    network.heal()
  })

  it('is reported exactly once for a resignation, before it is sent, even if onDemoted throws', async () => {
    const election = candidate()
    const told: unknown[] = []
    const warn = vi.spyOn(process, 'emitWarning').mockImplementation(() => {})
    const term = await election.campaign({
      onDemoted(demoted, reason) {
        told.push([demoted, reason])
        throw new Error('in onDemoted')
      },
    })
    expect(await term.resign()).toBe(true)
    expect(await term.resign()).toBe(false)
    expect(told).toEqual([[term, expect.any(NotHeldError)]])
    const warnings = warn.mock.calls.map(([message]) => String(message))
    vi.restoreAllMocks()
    expect(warnings).toEqual(['onDemoted threw Error: in onDemoted'])
    expect(await election.leader()).toBeUndefined()
  })

  it('a term ends by itself after maxTermSeconds', async () => {
    const election = candidate({ timeoutSeconds: 0.5 })
    const { signal } = await election.campaign({ maxTermSeconds: 0.3 })
    await vi.waitFor(() => expect(signal.aborted).toBe(true), 10_000)
    expect(signal.reason).toBeInstanceOf(LeaseLostError)
  })
})

describe('observing', () => {
  it('yields the leader and every change, also to no leader, and ends with its signal', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    const stop = new AbortController()
    const changes = b.observe({ everySeconds: 0.05, signal: stop.signal })
    const next = async () => (await changes.next()).value?.holderId
    expect(await next()).toBeUndefined()
    const term = await a.campaign()
    expect(await next()).toBe('a')
    await term.resign()
    expect(await next()).toBeUndefined()
    await b.campaign()
    expect(await next()).toBe('b')
    const last = changes.next()
    stop.abort()
    expect(await last).toEqual({ done: true, value: undefined })
  })

  it('looks at once when its own instance is elected or demoted', async () => {
    const [a] = candidates('a') as [LeaderElection]
    const changes = a.observe({ everySeconds: 3_600 })
    expect((await changes.next()).value).toBeUndefined()
    const term = await a.campaign()
    expect((await changes.next()).value?.term).toBe(term.term)
    await term.resign()
    expect((await changes.next()).value).toBeUndefined()
    const closed = changes.next()
    await a.close()
    expect((await closed).done).toBe(true)
  })

  it('a store that does not answer does not mean that there is no leader', async () => {
    const network = faultyNetwork(memoryDriver())
    const election = candidate({ driver: network.driver, holderId: 'a', callTimeoutSeconds: 0.05 })
    const heard = gate()
    const changes = election.observe({ everySeconds: 0.05, onError: () => heard.open() })
    const term = await election.campaign()
    expect((await changes.next()).value?.term).toBe(term.term)
    network.cut()
    const next = changes.next()
    await heard.opened
    network.heal()
    await term.resign()
    expect((await next).value).toBeUndefined()
  })
})

describe('run', () => {
  const quick = { restSeconds: 0.01 }

  it('campaigns again after the callback has ended, and resolves when its signal aborts', async () => {
    const election = candidate()
    const stop = new AbortController()
    const terms: number[] = []
    await election.run(
      ({ term }) => {
        terms.push(term)
        if (terms.length === 3) stop.abort()
      },
      { ...quick, signal: stop.signal },
    )
    expect(terms).toEqual([...new Set(terms)].sort((x, y) => x - y))
    expect(terms).toHaveLength(3)
    expect(await election.leader()).toBeUndefined()
  })

  it('campaigns again after a loss when the callback has settled; its abort is not an error', async () => {
    const network = faultyNetwork(memoryDriver())
    const election = candidate({ driver: network.driver, timeoutSeconds: 0.2, callTimeoutSeconds: 0.05 })
    const stop = new AbortController()
    const demoted: number[] = []
    const terms: Term[] = []
    await election.run(
      async (term) => {
        terms.push(term)
        if (terms.length === 2) return stop.abort()
        network.cut()
        // As `fetch` and the functions of Node do.
        await sleep(60_000, undefined, { signal: term.signal }).finally(() => network.heal())
      },
      { ...quick, signal: stop.signal, onDemoted: ({ term }) => demoted.push(term) },
    )
    expect(terms[0]?.signal.reason).toBeInstanceOf(LeaseLostError)
    expect(demoted).toEqual(terms.map(({ term }) => term))
  })

  it('rejects with the callback’s error after resigning', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    const failed = a.run(async () => {
      throw new Error('the disk is full')
    })
    await expect(failed).rejects.toThrow('the disk is full')
    expect((await b.campaign({ blockingTimeoutSeconds: 0 })).held).toBe(true)
  })

  it('with onError it goes on, and an error after a demotion counts as an error', async () => {
    const election = candidate()
    const stop = new AbortController()
    const errors: string[] = []
    let runs = 0
    await election.run(
      async (term) => {
        runs += 1
        if (runs === 1) throw new Error('first')
        await term.resign()
        if (runs === 2) throw new Error('second, in the clean-up')
        term.assertHeld() // its NotHeldError is how it stops
      },
      {
        ...quick,
        signal: stop.signal,
        onError: (error) => void errors.push((error as Error).message),
        onDemoted: () => runs === 3 && stop.abort(),
      },
    )
    expect(errors).toEqual(['first', 'second, in the clean-up'])
  })

  it.each(Object.entries(unreadableValues()))(
    'an error that cannot be read (%s) reaches onError',
    async (_, thrown) => {
      const election = candidate()
      const stop = new AbortController()
      const errors: unknown[] = []
      const lead = async (term: Term): Promise<never> => {
        await term.resign()
        throw thrown
      }
      const onError = (error: unknown): void => {
        errors.push(error)
        stop.abort()
      }
      await election.run(lead, { ...quick, signal: stop.signal, onError })
      expect(errors.length).toBe(1)
      expect(errors[0] === thrown).toBe(true)
    },
  )

  it('rests longer after each failure in a row', async () => {
    const election = candidate()
    const stop = new AbortController()
    const atMs: number[] = []
    await election.run(
      () => {
        atMs.push(performance.now())
        if (atMs.length === 5) stop.abort()
        throw new Error('again')
      },
      { restSeconds: 0.04, signal: stop.signal, onError: () => {} },
    )
    const restsMs = atMs.slice(1).map((each, index) => each - (atMs[index] as number))
    // At least half of 40, 80, 160, 320 ms.
    for (const [index, restMs] of restsMs.entries()) expect(restMs).toBeGreaterThanOrEqual(20 * 2 ** index - 2)
  })

  it('a callback that always fails does not campaign in a busy loop, even with restSeconds: 0', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const election = candidate({ driver: memoryDriver({ store: createMemoryStore(clock) }), clock })
    const stop = new AbortController()
    let terms = 0
    const run = election.run(
      () => {
        terms += 1
        throw new Error('always')
      },
      { restSeconds: 0, signal: stop.signal, onError: () => {} },
    )
    await time.run(500)
    expect(terms).toBeGreaterThan(1)
    expect(terms).toBeLessThanOrEqual(5)
    stop.abort()
    await time.run(100)
    await run
  })

  it('keeps the term until the callback has stopped when the caller’s signal aborts', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    const stop = new AbortController()
    const [leads, stopping, cleaned] = [gate(), gate(), gate()]
    const demoted: boolean[] = []
    const run = a.run(
      async (term) => {
        leads.open()
        await new Promise((resolve) => term.signal.addEventListener('abort', resolve))
        expect(term.signal.reason).toBeInstanceOf(AbortedError)
        stopping.open()
        await cleaned.opened
        expect(term.held).toBe(true)
      },
      { signal: stop.signal, onDemoted: () => demoted.push(true) },
    )
    await leads.opened
    stop.abort()
    await stopping.opened
    await expect(b.campaign({ blockingTimeoutSeconds: 0 })).rejects.toBeInstanceOf(NotAcquiredError)
    expect(demoted).toEqual([])
    cleaned.open()
    await run
    expect(demoted).toEqual([true])
    expect((await b.campaign({ blockingTimeoutSeconds: 0 })).held).toBe(true)
  })

  it('resolves when the instance is closed, while leading or campaigning', async () => {
    const [a, b] = candidates('a', 'b') as [LeaderElection, LeaderElection]
    const leads = gate()
    const leading = a.run(async (term) => {
      leads.open()
      await new Promise((resolve) => term.signal.addEventListener('abort', resolve))
    })
    await leads.opened
    const campaigning = b.run(async () => {})
    await b.close()
    await campaigning
    await a.close()
    await leading
    await expect(a.run(async () => {})).rejects.toBeInstanceOf(ClosedError)
  })

  it('three candidates lead in turn, one at a time', async () => {
    const stop = new AbortController()
    let leading = 0
    const terms: number[] = []
    const runs = candidates('a', 'b', 'c').map((election) =>
      election.run(
        async (term) => {
          leading += 1
          expect(leading).toBe(1)
          terms.push(term.term)
          await new Promise(setImmediate) // so that a second leader would be noticed
          leading -= 1
          if (terms.length >= 12) stop.abort()
        },
        { ...quick, signal: stop.signal },
      ),
    )
    await Promise.all(runs)
    expect(terms).toEqual([...terms].sort((x, y) => x - y))
  })
})
