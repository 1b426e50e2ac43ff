import { setTimeout as sleepFor } from 'node:timers/promises'

/**
 * Node's timers and clocks, as they were when this module was loaded. `core/`, `primitives/` and `drivers/` use only
 * these; test/import-rules.test.ts checks it. Tests of an application replace the global ones (`vi.useFakeTimers()`): a
 * lock for which time, or a part of it, does not advance would hang or spin.
 */
export const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate, queueMicrotask } = globalThis

export const { hrtime, nextTick } = process

export const sleep = sleepFor

/**
 * An object, so that the conformance suite can give the process a wrong clock (testing/conformance/client-clock.ts).
 */
export const wallClock = { nowMs: Date.now }
