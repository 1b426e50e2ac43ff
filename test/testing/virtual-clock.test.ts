import { describe, expect, it } from 'vitest'
import { seededRandom, VirtualTime } from '../../src/testing/virtual-clock.ts'

describe('virtual time', () => {
  it('runs due events in the order of their times, and none before its time', async () => {
    const time = new VirtualTime()
    const ran: string[] = []
    time.in(20, () => ran.push(`b at ${time.nowMs}`))
    time.in(10, () => ran.push(`a at ${time.nowMs}`))
    time.in(20, () => ran.push(`c at ${time.nowMs}`))
    time.in(31, () => ran.push('too early'))
    await time.run(30)
    expect(ran).toEqual(['a at 10', 'b at 20', 'c at 20'])
    expect(time.nowMs).toBe(30)
  })

  it('lets all microtasks and ticks run before the next event', async () => {
    const time = new VirtualTime()
    const ran: string[] = []
    time.in(1, () => queueMicrotask(() => process.nextTick(() => Promise.resolve().then(() => ran.push('first')))))
    time.in(1, () => ran.push('second'))
    await time.run(1)
    expect(ran).toEqual(['first', 'second'])
  })

  it('does not run a timer that was cancelled', async () => {
    const clock = new VirtualTime()
    const view = clock.clock()
    const ran: string[] = []
    const timer = view.setTimer(() => ran.push('cancelled'), 5)
    timer.cancel()
    timer.cancel()
    await clock.run(10)
    expect(ran).toEqual([])
    expect(view.timers).toBe(0)
  })

  it('is later in the next statement after a stall, with nothing run meanwhile', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    let ran = false
    clock.setTimer(() => {
      ran = true
    }, 10)
    time.stall(50)
    expect(clock.now().monotonicMs).toBe(50)
    expect(ran).toBe(false)
    await time.run(0)
    expect(ran).toBe(true)
  })
})

describe("a process's clocks", () => {
  it('hold timers and messages back during a pause, and run them in order on resume', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const ran: string[] = []
    const note = (what: string) => () => ran.push(`${what} at ${clock.now().monotonicMs}`)
    clock.setTimer(note('timer'), 10)
    clock.receive(5, note('message'))
    clock.onResume.add(note('resumed'))
    clock.pause(100)
    await time.run(99)
    expect(ran).toEqual([])
    await time.run(1)
    expect(ran).toEqual(['resumed at 100', 'message at 100', 'timer at 100'])
  })

  it('run timers first if asked to', async () => {
    const time = new VirtualTime()
    const clock = time.clock({ resumeOrder: 'timers' })
    const ran: string[] = []
    clock.receive(5, () => ran.push('message'))
    clock.setTimer(() => ran.push('timer'), 10)
    clock.pause(100)
    await time.run(100)
    expect(ran).toEqual(['timer', 'message'])
  })

  it('stop while the machine sleeps, except for the wall clock', async () => {
    const time = new VirtualTime()
    const clock = time.clock()
    const before = clock.now()
    let firedMs: number | undefined
    clock.setTimer(() => {
      firedMs = time.nowMs
    }, 10)
    clock.suspend(100)
    await time.run(100)
    expect(clock.now().monotonicMs - before.monotonicMs).toBe(0)
    expect(clock.now().wallMs - before.wallMs).toBe(100)
    expect(firedMs).toBeUndefined()
    await time.run(10)
    expect(firedMs).toBe(110)
  })

  it('can be set, and run slow, without affecting another process', async () => {
    const time = new VirtualTime()
    const [slow, other] = [time.clock({ rate: 0.5 }), time.clock({ wallOffsetMs: 7 })]
    const before = { slow: slow.now(), other: other.now() }
    slow.stepWall(-1_000)
    await time.run(100)
    expect(slow.now().monotonicMs - before.slow.monotonicMs).toBe(50)
    expect(slow.now().wallMs - before.slow.wallMs).toBe(-950)
    expect(other.now().monotonicMs - before.other.monotonicMs).toBe(100)
    expect(before.other.wallMs - before.slow.wallMs).toBe(7)
  })

  it("fire at whole milliseconds of the process's own time, and not before one", async () => {
    const time = new VirtualTime()
    const clock = time.clock({ rate: 0.5 })
    const ran: number[] = []
    clock.setTimer(() => ran.push(time.nowMs), 0)
    clock.setTimer(() => ran.push(time.nowMs), 10.9)
    await time.run(100)
    expect(ran).toEqual([2, 20])
  })
})

describe('seeded randomness', () => {
  it('repeats for the same seed, and differs for another', () => {
    const draw = (seed: number): unknown[] => {
      const random = seededRandom(seed)
      return [
        random.fraction(),
        random.id(),
        random.whole(3, 9),
        random.pick(['a', 'b', 'c']),
        random.fork().fraction(),
      ]
    }
    expect(draw(1)).toEqual(draw(1))
    expect(draw(1)).not.toEqual(draw(2))
    expect(seededRandom(1).id()).toMatch(/^[a-z0-9]{16}$/)
  })
})
