// @ts-check
/** @import { Mutant } from './mutant.mjs' */

const LEASE = 'src/core/lease/held-lease.ts'
const USE = 'src/core/lease/lease-use.ts'
const FEW = 'src/core/few.ts'
const REENTRY = 'src/primitives/lock/reentry.ts'
const CLAIMS = 'src/primitives/lock/claims.ts'
const SEVERAL = 'src/primitives/lock/several-locks.ts'
const HOLDER = 'src/core/claim/holder.ts'
const INSTANCE = 'src/primitives/instance.ts'
const LOCK = 'src/primitives/lock/distributed-lock.ts'

/**
 * Uses of a lease, re-entry, `withLocks` and closing. Random programs of all calls find them.
 *
 * @type {Mutant[]}
 */
export const uses = [
  // The count of uses.
  mutant(
    'last-use-but-one-releases',
    'a lease is released under its last use',
    LEASE,
    'const answer = this.#uses === undefined ? this.#release(minHoldMs, [use])',
    'const answer = sizeOf(this.#uses) <= 1 ? this.#release(minHoldMs, [use])',
  ),
  mutant(
    'second-use-not-counted',
    'the end of one use releases the lease under another',
    FEW,
    'return few instanceof Set ? few.add(one) : new Set([few, one])',
    'return one',
  ),
  mutant(
    'use-inside-still-counts',
    'a use that ended with the function around it keeps the lock',
    LEASE,
    'for (const each of inside) this.#uses = withoutOne(this.#uses, each)',
    '',
  ),
  mutant(
    'use-inside-not-told',
    'a function runs on although the function around it has released the lease',
    LEASE,
    "if (inside.length > 0) tell(inside, this.#errorOf('the function around it has released it'))",
    '',
  ),
  mutant(
    'end-of-a-use-unconfirmed',
    'one of several uses resolves although the store had ended the lease',
    LEASE,
    '? this.#release(minHoldMs, [use]) : this.#confirmFor(use)',
    '? this.#release(minHoldMs, [use]) : Promise.resolve(this.held)',
  ),
  mutant(
    'confirmed-without-the-store',
    'the end of a use does not ask the store',
    LEASE,
    'const isInStore = isAsked && (await this.#context.inFlight.track(this.#renewer.confirm()))',
    'const isInStore = isAsked',
  ),
  mutant(
    'last-use-not-told',
    'the last use resolves although its release found that the lease was lost',
    LEASE,
    'tell(release.uses, error, () => this.#emitLost(error, this.#lost(NOT_IN_STORE).kind))',
    'this.#emitLost(error, this.#lost(NOT_IN_STORE).kind)',
  ),
  mutant(
    'loss-not-told',
    'a lease is lost, and its uses do not learn of it',
    LEASE,
    'tell(uses, error, () => this.#emitLost(error, kind))',
    'this.#emitLost(error, kind)',
  ),
  mutant(
    'end-for-all-is-silent',
    'a release by name, `releaseAll` and `close` end a lease under functions that are not told',
    LEASE,
    'const areOwn = cause === undefined && (this.#isAlone || uses.every(isOwn))',
    'const areOwn = true || (this.#isAlone && cause !== undefined && uses.every(isOwn))',
  ),
  mutant(
    'function-is-alone',
    'a release by name from outside does not tell the function that runs under the lease',
    LEASE,
    'return sizeOf(this.#uses) === 1 && listOf(this.#uses)[0]?.runsFunction === false',
    'return sizeOf(this.#uses) === 1',
  ),
  mutant(
    'shared-lease-shortened',
    'an extension shortens the lease under other uses',
    LEASE,
    "return isOnly ? this.#renew(ttlMs, 'set') : this.lengthen(ttlMs)",
    "return isOnly || !isOnly ? this.#renew(ttlMs, 'set') : this.lengthen(ttlMs)",
  ),
  mutant(
    'shared-lease-handed-over',
    'a lease is handed over under its other uses',
    LEASE,
    'isShared: sizeOf(this.#uses) > 1',
    'isShared: false',
  ),
  mutant(
    'lease-of-a-function-handed-over',
    'a lease is handed over under a function',
    LEASE,
    'runsFunction: use.runsFunction',
    'runsFunction: false',
  ),
  mutant(
    'min-hold-ignored',
    'a lock is free before `minHoldSeconds` have passed',
    LEASE,
    'const delayMs = Math.ceil(minHoldMs - heldMs)',
    'const delayMs = Math.min(0, Math.ceil(minHoldMs - heldMs))',
  ),
  mutant(
    'renewed-after-its-end',
    'a renewal of a lease that has ended sets another end',
    LEASE,
    'this.#lastRenewals = this.#renewer.end()',
    '',
  ),
  mutant(
    'held-after-its-end',
    'a use that has ended says that it holds the lease',
    USE,
    "return this.#state === 'held' && this.lease.held",
    'return this.lease.held',
  ),
  // Re-entry.
  mutant(
    'function-not-awaited',
    'a function ends under a function that entered its lease',
    REENTRY,
    'while (running.runs.size > 0) await Promise.all(running.runs)',
    '',
  ),
  mutant(
    'reader-enters-as-writer',
    'a reader writes beside other readers',
    REENTRY,
    "if (frame.share.mode === 'exclusive' || share.mode === 'shared') return",
    'if (frame.share !== share || frame.share === share) return',
  ),
  mutant(
    'lost-lease-entered',
    'a function enters a lease that its instance has lost',
    REENTRY,
    'if (!frame.use.held) continue\n',
    '\n',
  ),
  mutant(
    'lease-of-another-instance-entered',
    'an instance enters the lease of another one',
    REENTRY,
    'frame.owner === this && frame.use.lockName === lockName) yield frame',
    'frame.use.lockName === lockName) yield frame',
  ),
  mutant(
    'lease-of-another-name-entered',
    'a function enters a lease on another name',
    REENTRY,
    'frame.owner === this && frame.use.lockName === lockName) yield frame',
    'frame.owner === this) yield frame',
  ),
  mutant(
    'permits-entered',
    'permits inside permits are not counted',
    REENTRY,
    'if (share.limit !== undefined) {',
    'if (share.limit === -1) {',
  ),
  mutant(
    'release-by-name-ends-the-outer-entry',
    'a release by name ends the function instead of its innermost entry',
    REENTRY,
    'const use = [...(frame?.entered ?? [])].at(-1) ?? frame?.use',
    'const use = frame?.use',
  ),
  mutant(
    'release-by-name-ends-everything',
    'a release by name inside a function ends the lease under other tasks',
    LOCK,
    'if (inner !== undefined && !inner.isEntered) return inner.release(options)',
    "if (inner !== undefined) return lease.endAll('it was released by name', () => false)",
  ),
  mutant(
    'function-not-noted',
    'a lease is ended as if no function ran under it',
    CLAIMS,
    'if (outcome instanceof LeaseUse) outcome.runsFunction = true',
    '',
  ),
  mutant(
    'loss-resolves',
    '`withLock` resolves although its lease was lost',
    CLAIMS,
    'for (const use of uses) throwIfLost(use)',
    '',
  ),
  mutant(
    'begins-under-a-lost-lease',
    'a function begins although its lease has ended since the grant',
    CLAIMS,
    'for (const use of uses) assertBegun(use)',
    '',
    'test/core/interplay/function-after-the-end-of-its-lease.test.ts',
  ),
  mutant(
    'use-not-ended',
    'a lock is kept after its function',
    CLAIMS,
    'await Promise.all(uses.map((use) => use[Symbol.asyncDispose]()))',
    '',
  ),
  mutant(
    'joined-lease-shortened',
    '`reacquire: "extend"` shortens the lease under other tasks',
    LEASE,
    "settle(this.#renew(ttlMs, 'lengthen'))",
    "settle(this.#renew(ttlMs, 'set'))",
  ),
  // Several locks.
  mutant(
    'group-not-discarded',
    '`withLocks` that is refused keeps the locks that it got',
    SEVERAL,
    'await limit.race(discard(taken))\n  const mayWait',
    'const mayWait',
  ),
  mutant(
    'taken-not-discarded',
    '`withLocks` that gives up keeps the locks that it got',
    SEVERAL,
    'await limit.race(discard(taken))\n    throw lost',
    'throw lost',
  ),
  mutant(
    'some-locks-suffice',
    '`withLocks` runs with some of its locks',
    SEVERAL,
    'if (taken.length === wanted.length) return taken',
    'if (taken.length > 0) return taken',
  ),
  // Closing.
  mutant(
    'close-does-not-settle',
    'closing takes the locks from functions that have time to settle',
    HOLDER,
    'await settled.catch(() => undefined)',
    'void settled.catch(() => undefined)',
  ),
  mutant(
    'drain-skipped',
    'closing takes the locks from work that may go on for `drainSeconds`',
    INSTANCE,
    'if (drainMs > 0 && this.#holder !== undefined) await this.#closesInTime(this.#holder.drain(drainMs))',
    '',
  ),
  mutant(
    'close-keeps-claims',
    'a claim still waits when its instance is closed',
    HOLDER,
    'async #close(): Promise<void> {\n    this.#endWaiting()',
    'async #close(): Promise<void> {',
  ),
  mutant(
    'close-keeps-leases',
    'an instance that is closed keeps its locks',
    HOLDER,
    "const ends = this.leases.all().map((lease) => lease.endAll('its instance was closed', () => false, cause))",
    'const ends: Promise<boolean>[] = cause === undefined ? [] : []',
  ),
  mutant(
    'release-all-is-silent',
    '`releaseAll` ends leases under functions of other tasks that are not told',
    LOCK,
    "lease.endAll('all locks were released', (use) => reentry.isOwn(use))",
    "lease.endAll('all locks were released', () => true)",
  ),
  {
    name: 'granted-while-closing',
    breaks: 'a claim that is granted while its instance is closed keeps its lease',
    file: HOLDER,
    search: "    if (this.#stage === 'closing') {\n      const onFailure",
    replace: "    if (this.#stage === 'open' && this.#closing !== undefined) {\n      const onFailure",
    checks: ['test/core/claim/closing.test.ts'],
  },
  {
    name: 'answered-before-its-place-is-withdrawn',
    breaks: 'a claim that has given up is in the way of the next one',
    file: 'src/core/claim/pending-claim.ts',
    search: 'if (isBeingWithdrawn && !isOutOfReach && untilMs > this.#nowMs)',
    replace: 'if (isBeingWithdrawn && !isOutOfReach && untilMs < this.#nowMs)',
    checks: ['test/core/claim/waiting.test.ts'],
  },
]

/**
 * @param {string} name
 * @param {string} breaks
 * @param {string} file
 * @param {string} search
 * @param {string} replace
 * @param {...string} tests for what the programs find too rarely
 * @returns {Mutant}
 */
function mutant(name, breaks, file, search, replace, ...tests) {
  return { name, breaks, file, search, replace, checks: ['programs', ...tests] }
}
