import { CODES } from '../codes.ts'
import type { LeaseHistory } from '../history.ts'
import { ended } from './ended.ts'
import { excessesOf, overlapsOf, permitsOf } from './exclusion.ts'
import { fallingOf } from './fencing.ts'
import { kept } from './kept.ts'
import { isExcused } from './losses.ts'
import { memory } from './memory.ts'
import { order } from './order.ts'
import { rate } from './rate.ts'
import { byName, type Check, type Finding, leasesOf, type Run } from './run.ts'
import { resurrection, signal } from './signal.ts'
import { waiters } from './waiters.ts'

/** At most one holder of a lock, or any number of readers. */
const exclusion: Check = {
  name: 'exclusion',
  find: (run) => overlaps(run, leasesOf(run).filter(isNoTerm)),
}

/** Tokens rise with every grant of a name. */
const fencing: Check = {
  name: 'fencing',
  find: (run) => falling(run, leasesOf(run).filter(isNoTerm)),
}

/** No more permits than the limit. */
const limit: Check = {
  name: 'limit',
  find: (run) =>
    [...byName(leasesOf(run).filter((lease) => lease.limit !== undefined)).values()].flatMap((leases) =>
      excessesOf(leases).map(({ holders, permits, limit: most }) => {
        const second = holders.at(-1) as LeaseHistory
        const isLost = permitsOf(afterLosses(holders, run)) <= most
        const ids = holders.map(({ id }) => id).join(', ')
        return {
          text: `${ids} held ${permits} permits of "${second.name}", but at most ${most} may be held`,
          ...about(holders),
          ...(isLost && { isExcused: true as const }),
        }
      }),
    ),
}

/** At most one leader at a time, and terms that rise. */
const election: Check = {
  name: 'election',
  find: (run) => {
    const terms = leasesOf(run).filter((lease) => !isNoTerm(lease))
    return [...overlaps(run, terms), ...falling(run, terms)]
  },
}

/** No update is lost in a record that checks the token before the read. */
const updates: Check = {
  name: 'updates',
  find: ({ records }) =>
    records
      .filter(({ isChecked }) => isChecked)
      .flatMap(({ name, writes, value, lostUpdates }) => [
        ...lostUpdates.map((text) => ({ text: `a lost update of "${name}": ${text}`, lockName: name })),
        ...(value === writes
          ? []
          : [{ text: `"${name}" was written ${writes} times, but is ${value}`, lockName: name }]),
      ]),
}

/** Nothing is left in the store when everything must have ended. */
const left: Check = {
  name: 'left in the store',
  find: (run) => run.left.map((text) => ({ text })),
}

/** A call that fails does so with an error that the documentation names, and not with one of a client package. */
const errors: Check = {
  name: 'errors',
  find: ({ histories }) =>
    histories.flatMap(({ client, errors: counts, unexpected }) =>
      Object.keys(counts).flatMap((key) => {
        const [where = '', code = ''] = key.split(' ')
        if (CODES.has(code)) return []
        const text = unexpected.find((each) => each.startsWith(`${where}: `)) ?? key
        return [{ text: `a call of client ${client} failed with an error that is not documented: ${text}` }]
      }),
    ),
}

export const CHECKS: readonly Check[] = [
  exclusion,
  fencing,
  updates,
  signal,
  resurrection,
  waiters,
  ended,
  kept,
  order,
  limit,
  election,
  rate,
  left,
  errors,
  memory,
]

/** All that is wrong with a run. */
export const judge = (run: Run): Finding[] =>
  CHECKS.flatMap(({ name, find }) => find(run).map((finding) => ({ check: name, ...finding })))

const isNoTerm = ({ kind }: LeaseHistory): boolean => kind !== 'election'

/** The holders that the store must know of when it grants the newest one: without those that a loss explains. */
function afterLosses(holders: readonly LeaseHistory[], { losses }: Run): LeaseHistory[] {
  const newest = holders.reduce((one, other) => (other.token > one.token ? other : one))
  return holders.filter((first) => first === newest || !isExcused({ first, second: newest }, losses))
}

const overlaps = ({ losses }: Run, leases: readonly LeaseHistory[]) =>
  [...byName(leases).values()].flatMap(overlapsOf).map(({ first, second, forMs }) => ({
    text: `${first.id} and ${second.id} both held "${first.name}" for ${forMs.toFixed(1)} ms`,
    ...about([first, second]),
    ...(isExcused({ first, second }, losses) && { isExcused: true as const }),
  }))

const falling = ({ losses }: Run, leases: readonly LeaseHistory[]) =>
  [...byName(leases).values()]
    .flatMap((sameName) => fallingOf(sameName, losses))
    .map(({ before, after }) => ({
      text: `${after.id} got the token ${after.token} for "${after.name}" after ${before.id} had got ${before.token}`,
      ...about([before, after]),
    }))

const about = (leases: readonly LeaseHistory[]) => ({
  lockName: leases[0]?.name ?? '',
  leases,
  fromMs: Math.max(...leases.map(({ knownAt }) => knownAt)),
  toMs: Math.max(...leases.map(({ knownAt, heldUntil = knownAt }) => heldUntil)),
})
