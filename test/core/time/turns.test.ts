import assert from 'node:assert/strict'
import { describe, it } from 'vitest'
import type { Clock } from '../../../src/core/time/clock.ts'
import { turnsOf } from '../../../src/core/time/turns.ts'

describe('turns of the event loop', () => {
  it('the first step after an idle time does not wait', () => {
    const loop = startLoop()
    assert.equal(loop.stepWaits(), false)
    loop.turn()
    loop.pass(2_000)
    assert.equal(loop.stepWaits(), false)
  })

  it('failure 48: a loop of steps that never returns to the event loop waits for a turn after 10 ms', () => {
    const loop = startLoop()
    loop.stepWaits()
    loop.turn()
    for (let round = 0; round < 3; round += 1) {
      const waited = Array.from({ length: 12 }, () => {
        loop.pass(1)
        return loop.stepWaits()
      })
      assert.equal(waited.indexOf(true), 9)
      loop.turn()
    }
  })

  it('failure 48: after an idle time, such a loop waits after 5 ms', () => {
    const loop = startLoop()
    loop.pass(2_000)
    assert.equal(loop.stepWaits(), false)
    loop.pass(4.9)
    assert.equal(loop.stepWaits(), false)
    loop.pass(0.1)
    assert.equal(loop.stepWaits(), true)
  })

  it('failure 48: a step that takes longer than 10 ms is followed by a turn, each time', () => {
    const loop = startLoop()
    for (let round = 0; round < 3; round += 1) {
      loop.next(() => {
        loop.pass(30) // a long step
        assert.equal(loop.stepWaits(), true)
      })
      loop.turn()
    }
  })

  it('failure 48: the callbacks of one turn are not one turn each', () => {
    const loop = startLoop()
    const first = (): void => {
      for (let ms = 0; ms < 10; ms += 1) loop.pass(1)
      assert.equal(loop.stepWaits(), true)
    }
    loop.next(first)
    loop.next(() => assert.equal(loop.stepWaits(), true))
    loop.pass(1)
    loop.turn()
  })

  it('steps with turns between them do not wait, and ask for a turn every 5 ms', () => {
    const loop = startLoop()
    for (let ms = 0; ms < 1_000; ms += 1) {
      loop.pass(1)
      assert.equal(loop.stepWaits(), false)
      loop.turn()
    }
    assert.equal(loop.asked, 200)
  })
})

function startLoop() {
  let nowMs = 1_000_000
  let next: (() => void)[] = []
  let asked = 0
  const clock: Clock = {
    now: () => ({ monotonicMs: nowMs, wallMs: nowMs }),
    setTimer: () => ({ cancel() {} }),
    nextTurn(run) {
      asked += 1
      next.push(run)
    },
  }
  return {
    pass(ms: number) {
      nowMs += ms
    },
    stepWaits: () => turnsOf(clock).owed(nowMs),
    next: (run: () => void) => turnsOf(clock).next(run),
    turn() {
      const due = next
      next = []
      for (const run of due) {
        nowMs += 1 / 64 // a fraction that adds up exactly
        run()
      }
    },
    get asked() {
      return asked
    },
  }
}
