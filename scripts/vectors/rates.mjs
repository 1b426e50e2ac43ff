// @ts-check
import { consumeStep, policyFor } from '../../src/drivers/shared/consume-step.ts'

/** @typedef {import('../../src/core/driver.ts').RateLimit} RateLimit */
/** @typedef {import('../../src/drivers/shared/consume-step.ts').Moment} Moment */

const HOUR_MS = 3_600_000
const TEN_AN_HOUR = { limit: 10, periodMs: HOUR_MS, burst: 10 }
const TWENTY_A_DAY = { limit: 20, periodMs: 24 * HOUR_MS, burst: 20 }
const TEN_AN_HOUR_EVENLY = { limit: 10, periodMs: HOUR_MS, burst: 1 }
const THREE_A_SECOND = { limit: 3, periodMs: 1_000, burst: 3 }

export function rateLimits() {
  return {
    about:
      "The id under which a limit's moment is stored, how far one unit moves the moment (spacingMs) and how far " +
      'ahead the moment may be (fullMs).',
    vectors: [
      TEN_AN_HOUR,
      TWENTY_A_DAY,
      TEN_AN_HOUR_EVENLY,
      THREE_A_SECOND,
      { limit: 2, periodMs: 1, burst: 4 },
      { limit: 1, periodMs: 1.0005, burst: 1 },
      { limit: 1_000_000_000, periodMs: 31_536_000_000, burst: 1_000_000_000 },
    ].map((limit) => {
      const { ids, spacingsMs, fullsMs } = policyFor({ name: '', cost: 1, limits: [limit] })
      return { ...limit, id: ids[0], spacingMs: spacingsMs[0], fullMs: fullsMs[0] }
    }),
  }
}

/** 2026-03-01 12:00 UTC. */
const NOW_MS = 1_772_366_400_000

export function rateSteps() {
  return {
    about:
      'One step of the generic cell rate algorithm, from what is stored for each limit (before) to what is stored ' +
      'after it, and the answer. atMs is the moment; untilMs and blockMs are the end and the length of a block, and ' +
      '0 without one. Without a change, cost units are taken. change: "reset", or { blockMs } for a block of that ' +
      'length. What has ended need not be stored: a moment that has passed counts as none.',
    vectors: [
      ['the first unit', { limits: [TEN_AN_HOUR], cost: 1 }, [none]],
      ['a unit after others', { limits: [TEN_AN_HOUR], cost: 1 }, [ahead(1_800_000)]],
      ['all units at once', { limits: [TEN_AN_HOUR], cost: 10 }, [none]],
      ['more units than the burst', { limits: [TEN_AN_HOUR], cost: 11 }, [none]],
      ['a unit that does not fit', { limits: [TEN_AN_HOUR], cost: 1 }, [ahead(3_600_000)]],
      ['a unit that just fits', { limits: [TEN_AN_HOUR], cost: 1 }, [ahead(3_240_001)]],
      ['a unit that just does not fit', { limits: [TEN_AN_HOUR], cost: 1 }, [ahead(3_240_002)]],
      ['a moment that has passed', { limits: [TEN_AN_HOUR], cost: 2 }, [ahead(-5_000)]],
      ['fractions', { limits: [THREE_A_SECOND], cost: 1 }, [ahead(333.25)]],
      ['a burst of one', { limits: [TEN_AN_HOUR_EVENLY], cost: 1 }, [ahead(1)]],
      ['a look', { limits: [TEN_AN_HOUR], cost: 0 }, [ahead(1_800_000)]],
      ['a look at nothing', { limits: [TEN_AN_HOUR], cost: 0 }, [none]],
      ['several limits, all allow it', { limits: [TEN_AN_HOUR, TWENTY_A_DAY], cost: 2 }, [none, ahead(7_200_000)]],
      ['several limits, one does not', { limits: [TEN_AN_HOUR, TWENTY_A_DAY], cost: 1 }, [none, ahead(86_400_000)]],
      ['a clock that was set back', { limits: [TEN_AN_HOUR], cost: 1 }, [ahead(90_000_000)]],
      ['a look after a clock was set back', { limits: [TEN_AN_HOUR], cost: 0 }, [ahead(90_000_000)]],
      ['a reset', { limits: [TEN_AN_HOUR], cost: 0, change: 'reset' }, [blocked(3_600_000, 5_000, 60_000)]],
      ['a block', { limits: [TEN_AN_HOUR], cost: 0, change: { blockMs: 60_000 } }, [ahead(360_000)]],
      ['the end of a block', { limits: [TEN_AN_HOUR], cost: 0, change: { blockMs: 0 } }, [blocked(0, 5_000, 60_000)]],
      ['a unit of a blocked limit', { limits: [TEN_AN_HOUR], cost: 1 }, [blocked(360_000, 5_000, 60_000)]],
      ['a look at a blocked limit', { limits: [TEN_AN_HOUR], cost: 0 }, [blocked(360_000, 5_000, 60_000)]],
      ['a block that has ended', { limits: [TEN_AN_HOUR], cost: 1 }, [blocked(360_000, -5_000, 60_000)]],
      [
        'a block from before a clock was set back',
        { limits: [TEN_AN_HOUR], cost: 1 },
        [blocked(0, 90_000_000, 60_000)],
      ],
      [
        'one of several limits is blocked',
        { limits: [TEN_AN_HOUR, TWENTY_A_DAY], cost: 1 },
        [ahead(360_000), blocked(0, 5_000, 60_000)],
      ],
    ].map(([title, request, before]) =>
      stepOf(/** @type {string} */ (title), /** @type {Request} */ (request), /** @type {Moment[]} */ (before)),
    ),
  }
}

/** @typedef {{ limits: RateLimit[], cost: number, change?: 'reset' | { blockMs: number } }} Request */

/**
 * @param {string} title
 * @param {Request} request
 * @param {Moment[]} before
 */
function stepOf(title, { limits, cost, change }, before) {
  const moments = before.map((moment) => ({ ...moment }))
  const answer = consumeStep(policyFor({ name: '', cost, limits }), moments, NOW_MS, change)
  return { title, limits, cost, ...(change && { change }), nowMs: NOW_MS, before, after: moments, answer }
}

/** @type {Moment} */
const none = { atMs: 0, untilMs: 0, blockMs: 0 }

/**
 * @param {number} ms
 * @returns {Moment}
 */
const ahead = (ms) => ({ atMs: NOW_MS + ms, untilMs: 0, blockMs: 0 })

/**
 * @param {number} ms how far ahead the moment is
 * @param {number} leftMs
 * @param {number} blockMs
 * @returns {Moment}
 */
const blocked = (ms, leftMs, blockMs) => ({ atMs: ms === 0 ? 0 : NOW_MS + ms, untilMs: NOW_MS + leftMs, blockMs })
