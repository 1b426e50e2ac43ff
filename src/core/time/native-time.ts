import { setTimeout as sleepFor } from 'node:timers/promises'

/**
 * Node's timers and clocks, as they were when this module was loaded. All of `core/`, `primitives/` and `drivers/` uses
 * these, see test/import-rules.test.ts. An application's tests replace the global ones (`vi.useFakeTimers()`): a lock
 * whose time stands still, or stands still in part, hangs or spins.
 */
export const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, queueMicrotask } = globalThis

export const { hrtime, nextTick } = process

export const sleep = sleepFor

/** An object, so that the conformance suite can set this process's clock wrong (testing/conformance/client-clock.ts). */
export const wallClock = { nowMs: Date.now }
