// @ts-check
import { tokenAfter } from '../../src/drivers/shared/tokens.ts'

/** 2026-03-01 12:00 UTC, in microseconds. */
const NOW_US = 1_772_366_400_000_000
const SECOND_US = 1_000_000
const MINUTE_US = 60 * SECOND_US
const DAY_US = 86_400 * SECOND_US

export function tokens() {
  return {
    about:
      'Fencing tokens. floors: the next token after the last one, by the clock in microseconds. ballots: what a ' +
      'Redlock node answers to a token that a client proposes; mark is the last token that the node has granted, and ' +
      'mostAheadUs is how far ahead of its clock the client allows (granted; b: not above the mark; f: too far ' +
      'ahead). A test on a real server adds the difference between its clock and nowUs to every time.',
    floors: [
      { last: 0, nowUs: NOW_US },
      { last: NOW_US - MINUTE_US, nowUs: NOW_US },
      { last: NOW_US - 1, nowUs: NOW_US },
      { last: NOW_US, nowUs: NOW_US },
      { last: NOW_US + MINUTE_US, nowUs: NOW_US },
      { last: NOW_US + DAY_US, nowUs: NOW_US },
    ].map((each) => ({ ...each, token: tokenAfter(each.last, each.nowUs) })),
    ballots: [
      { mark: 0, proposed: NOW_US - DAY_US },
      { mark: 0, proposed: NOW_US },
      { mark: NOW_US - MINUTE_US, proposed: NOW_US },
      { mark: NOW_US - MINUTE_US, proposed: NOW_US - MINUTE_US },
      { mark: NOW_US - MINUTE_US, proposed: NOW_US - MINUTE_US + 1 },
      { mark: NOW_US + MINUTE_US, proposed: NOW_US },
      { mark: NOW_US + MINUTE_US, proposed: NOW_US + MINUTE_US },
      { mark: NOW_US + MINUTE_US, proposed: NOW_US + MINUTE_US + 1 },
      { mark: 0, proposed: NOW_US + 5 * MINUTE_US },
      { mark: 0, proposed: NOW_US + 15 * MINUTE_US },
      // The node's clock was set back: a little above its mark is allowed.
      { mark: NOW_US + DAY_US, proposed: NOW_US + DAY_US + 1 },
      { mark: NOW_US + DAY_US, proposed: NOW_US + DAY_US + MOST_STEP },
      { mark: NOW_US + DAY_US, proposed: NOW_US + DAY_US + MOST_STEP + 1 },
    ].map(({ mark, proposed }) => {
      const ballot = { mark, nowUs: NOW_US, mostAheadUs: 10 * MINUTE_US, proposed }
      return { ...ballot, answer: answerTo(ballot) }
    }),
  }
}

/**
 * The rule of leases.lua, which test/protocol/vectors.test.ts compares with the script itself.
 *
 * @param {{ mark: number, nowUs: number, mostAheadUs: number, proposed: number }} ballot
 */
function answerTo({ mark, nowUs, mostAheadUs, proposed }) {
  if (proposed <= mark) return 'b'
  return proposed > Math.max(nowUs + mostAheadUs, mark + MOST_STEP) ? 'f' : 'granted'
}

const MOST_STEP = 10_000
