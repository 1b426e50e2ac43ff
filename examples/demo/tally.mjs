// @ts-check
// Counts the results of the demo from the events of its processes. Nothing here is known beforehand.

/**
 * @typedef {object} DemoEvent
 * @property {number} at in milliseconds of the machine's monotonic clock
 * @property {string} who
 * @property {string} what
 * @property {number} [token]
 * @property {boolean} [held] `lease.held` after the pause
 * @property {number} [balance]
 * @property {boolean} [accepted] by the account that checks the token
 * @property {boolean} [acceptedWithoutCheck]
 * @property {number} [ttlMs]
 * @property {number} [counted] the number in the file
 * @property {number} [expected]
 * @property {number} [pid]
 * @property {string} [error]
 */

/** After one of these, a process no longer acts as a holder. */
const ENDS = ['lets go', 'is killed', 'is paused']

/** How late a takeover may be on a busy machine. */
const SLACK_MS = 1_000

/** @param {readonly DemoEvent[]} recorded */
export function tally(recorded) {
  const events = [...recorded].sort((a, b) => a.at - b.at)
  const holds = events
    .filter(({ what }) => what === 'holds')
    .map(({ who, at, token = 0 }) => {
      const end = events.find((event) => event.who === who && event.at >= at && ENDS.includes(event.what))
      return { who, token, fromMs: at, toMs: end?.at ?? Number.POSITIVE_INFINITY, end }
    })
  const earlier = holds.map((_, index) => holds.slice(0, index))
  return {
    processes: new Set(events.filter(({ what }) => what === 'starts').map(({ who }) => who)).size,
    grants: holds.length,
    risingTokens: holds.filter((hold, i) => earlier[i]?.every(({ token }) => token < hold.token)).length,
    overlaps: holds.flatMap((hold, i) => earlier[i]?.filter(({ toMs }) => toMs > hold.fromMs) ?? []).length,
    takeovers: holds.slice(1).flatMap((hold, i) => {
      const { who: from = '', toMs = 0, end } = holds[i] ?? {}
      if (end?.what !== 'is killed' && end?.what !== 'is paused') return []
      return [{ from, to: hold.who, cause: end.what, afterMs: hold.fromMs - toMs, ttlMs: end.ttlMs ?? 0 }]
    }),
    refusedWrites: events.filter(({ what, accepted }) => what === 'writes' && accepted === false),
    wakings: events.filter(({ what }) => what === 'wakes'),
    counter: events.find(({ what }) => what === 'counts'),
  }
}

/**
 * The claims of the demo, and whether the events show them.
 *
 * @param {readonly DemoEvent[]} events
 * @returns {{ shown: boolean, text: string }[]}
 */
export function claims(events) {
  const { processes, grants, risingTokens, overlaps, takeovers, refusedWrites, wakings, counter } = tally(events)
  const afterKill = takeovers.find(({ cause }) => cause === 'is killed')
  const afterPause = takeovers.find(({ cause }) => cause === 'is paused')
  const [waking] = wakings
  const [late] = refusedWrites
  return [
    {
      shown: grants > processes && risingTokens === grants,
      text: `${grants} grants to ${processes} processes, each fencing token larger than all before it`,
    },
    {
      shown: grants > 0 && overlaps === 0,
      text: `${overlaps} overlaps: no two processes held the lock at the same time`,
    },
    {
      shown: counter !== undefined && counter.counted === counter.expected,
      text: `${counter?.counted ?? 0} of ${counter?.expected ?? 0} additions are in the file: none was lost`,
    },
    {
      shown: afterKill !== undefined && afterKill.afterMs <= afterKill.ttlMs + SLACK_MS,
      text:
        afterKill === undefined
          ? 'no takeover after SIGKILL'
          : `${afterKill.to} took over ${seconds(afterKill.afterMs)} after ${afterKill.from} was killed; ` +
            `the TTL was ${seconds(afterKill.ttlMs)}`,
    },
    {
      shown: afterPause !== undefined && waking?.held === false && waking.who === afterPause.from,
      text:
        afterPause === undefined
          ? 'no takeover after SIGSTOP'
          : `${afterPause.to} took over while ${afterPause.from} was paused; ` +
            `${afterPause.from} then saw held = ${waking?.held}`,
    },
    {
      shown: refusedWrites.length === 1 && late?.who === waking?.who && late?.acceptedWithoutCheck === true,
      text: `${refusedWrites.length} late write rejected by its token; without the check it was accepted`,
    },
  ]
}

/** @param {number} ms */
export const seconds = (ms) => `${(ms / 1_000).toFixed(2)} s`
