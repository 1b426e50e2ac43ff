import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Clock } from '../../../src/core/time/clock.ts'
import { Scheduler, type Task } from '../../../src/core/time/scheduler.ts'

/** A clock that advances only by `runUntil`. */
function manualClock() {
  const state = {
    nowMs: 0,
    wallOffsetMs: 0,
    timers: new Map<number, { atMs: number; run: () => void; keepsAlive: boolean }>(),
  }
  let lastId = 0
  const clock: Clock = {
    now: () => ({ monotonicMs: state.nowMs, wallMs: state.nowMs + state.wallOffsetMs }),
    setTimer(run, delayMs, keepsAlive = false) {
      lastId += 1
      const id = lastId
      state.timers.set(id, { atMs: state.nowMs + delayMs, run, keepsAlive })
      return {
        cancel: () => state.timers.delete(id),
        keepAlive: (on) => {
          const timer = state.timers.get(id)
          if (timer !== undefined) timer.keepsAlive = on
        },
      }
    },
  }
  function runUntil(untilMs: number): void {
    for (;;) {
      const next = [...state.timers].sort(([, a], [, b]) => a.atMs - b.atMs)[0]
      if (next === undefined || next[1].atMs > untilMs) break
      state.timers.delete(next[0])
      state.nowMs = Math.max(state.nowMs, next[1].atMs)
      next[1].run()
    }
    state.nowMs = untilMs
  }
  return { clock, state, runUntil }
}

const random = { fraction: () => 0.5, id: () => 'id' }

describe('the scheduler', () => {
  it('runs tasks with the same time in the order in which they were set', () => {
    const { clock, runUntil } = manualClock()
    const scheduler = new Scheduler(clock, random)
    const ran: number[] = []
    const tasks = Array.from({ length: 20 }, (_, index): Task => ({ keepsAlive: false, due: () => ran.push(index) }))
    for (const task of [...tasks].reverse()) scheduler.set(task, 7)
    for (const task of tasks) scheduler.set(task, 5)
    runUntil(6)
    expect(ran).toEqual([...tasks.keys()])
  })

  it('runs every task once, in order, at the time that was set last, with one timer', () => {
    const plan = fc.array(
      fc.record({ atMs: fc.nat(5_000), movedTo: fc.option(fc.nat(5_000), { nil: undefined }), cleared: fc.boolean() }),
      {
        maxLength: 40,
      },
    )
    fc.assert(
      fc.property(plan, (entries) => {
        const { clock, state, runUntil } = manualClock()
        const scheduler = new Scheduler(clock, random)
        const ran: { index: number; atMs: number }[] = []
        const tasks = entries.map((_, index): Task => {
          const task: Task = {
            keepsAlive: index % 2 === 0,
            due: () => {
              ran.push({ index, atMs: state.nowMs })
              scheduler.clear(task)
            },
          }
          return task
        })
        entries.forEach(({ atMs }, index) => {
          scheduler.set(tasks[index] as Task, atMs)
        })
        entries.forEach(({ movedTo }, index) => {
          if (movedTo !== undefined) scheduler.set(tasks[index] as Task, movedTo)
        })
        entries.forEach(({ cleared }, index) => {
          if (cleared) scheduler.clear(tasks[index] as Task)
        })
        expect(state.timers.size).toBeLessThanOrEqual(1)
        runUntil(10_000)
        const wanted = entries.flatMap(({ atMs, movedTo, cleared }, index) =>
          cleared ? [] : [{ index, atMs: movedTo ?? atMs }],
        )
        expect(ran.toSorted((a, b) => a.index - b.index)).toEqual(wanted)
        expect(ran.map(({ atMs }) => atMs)).toEqual(ran.map(({ atMs }) => atMs).toSorted((a, b) => a - b))
        expect(scheduler.size).toBe(0)
        expect(state.timers.size).toBe(0)
      }),
    )
  })

  it('keeps the process alive only while a task does', () => {
    const { clock, state } = manualClock()
    const scheduler = new Scheduler(clock, random)
    const lease = { keepsAlive: false, due: () => undefined }
    const waiter = { keepsAlive: true, due: () => undefined }
    const alive = () => [...state.timers.values()].map(({ keepsAlive }) => keepsAlive)
    scheduler.set(lease, 100)
    expect(alive()).toEqual([false])
    scheduler.set(waiter, 200)
    expect(alive()).toEqual([true])
    scheduler.clear(waiter)
    expect(alive()).toEqual([false])
  })

  it('does not replace its timer for claims that come and go faster than a timer fires', () => {
    const { clock, state } = manualClock()
    const scheduler = new Scheduler(clock, random)
    const set = clock.setTimer
    let armed = 0
    clock.setTimer = (...all) => {
      armed += 1
      return set(...all)
    }
    scheduler.set({ keepsAlive: false, due: () => undefined }, 50)
    for (let i = 0; i < 100; i += 1) {
      const claim = { keepsAlive: true, due: () => undefined }
      state.nowMs += 0.4
      scheduler.set(claim, state.nowMs + 1_000)
      scheduler.clear(claim)
    }
    expect(armed).toBe(1)
  })

  it('failure 3: a suspended machine is noticed within a second, and every task checks the clock', () => {
    const { clock, state, runUntil } = manualClock()
    const scheduler = new Scheduler(clock, random)
    let checks = 0
    scheduler.set(
      {
        keepsAlive: false,
        due: () => {
          checks += 1
        },
      },
      60_000,
    )
    runUntil(5_000)
    expect(checks).toBe(0)
    state.wallOffsetMs += 3_600_000
    runUntil(6_001)
    expect(checks).toBe(1)
  })
})
