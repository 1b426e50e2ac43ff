// @ts-check
// What a process of test/primitives/election/processes.test.ts can be told to do, on the built package. See test/harness/worker.ts.
import { connect, LeaderElection } from 'holdfast'

/** @typedef {{ election: LeaderElection, term?: import('holdfast').Term, demotions: { atMs: number, reason: string, stalledMs: number }[] }} Candidate */

/** @type {Map<string, Candidate>} */
const candidates = new Map()
let isCutOff = false
/** @type {Set<(error: Error) => void>} */
const hanging = new Set()

/** @param {{ url: string, names: string[], timeoutSeconds: number }} options */
export async function open({ url, names, timeoutSeconds }) {
  const driver = cuttable(await connect(url))
  for (const name of names) {
    const election = new LeaderElection({ name, driver, timeoutSeconds })
    candidates.set(name, { election, demotions: [] })
  }
}

/** Resolves when elected, with the moment of it. @param {string} name */
export async function campaign(name) {
  const candidate = /** @type {Candidate} */ (candidates.get(name))
  candidate.demotions = []
  candidate.term = await candidate.election.campaign({
    value: process.pid,
    onDemoted: (_, reason) => candidate.demotions.push({ atMs: nowMs(), reason: reason.code, stalledMs: stalledMs() }),
  })
  return { term: candidate.term.term, atMs: nowMs() }
}

/** The first statement asks `held`: after a pause, whatever timers or messages Node runs first. @param {string} name */
export function look(name) {
  const { term, demotions } = /** @type {Candidate} */ (candidates.get(name))
  return { held: term?.held, aborted: term?.signal.aborted, demotions }
}

/** @param {string} name */
export async function resign(name) {
  const { term } = /** @type {Candidate} */ (candidates.get(name))
  const atMs = nowMs()
  return { atMs, wasHeld: await term?.resign() }
}

/** For a store that has no network in between: nothing is sent, and nothing comes back. @param {boolean} on */
export function cutOff(on) {
  isCutOff = on
  if (on) return
  for (const fail of hanging) fail(new Error('the connection was cut'))
  hanging.clear()
}

/**
 * @param {import('holdfast').Driver} driver
 * @returns {import('holdfast').Driver}
 */
function cuttable(driver) {
  /** @template T @param {() => Promise<T>} send @returns {Promise<T>} */
  const unlessCut = (send) => (isCutOff ? new Promise((_, fail) => hanging.add(fail)) : send())
  return {
    ...driver,
    acquire: (claims) => unlessCut(() => driver.acquire(claims)),
    renew: (renewals) => unlessCut(() => driver.renew(renewals)),
    release: (leases) => unlessCut(() => driver.release(leases)),
    inspect: (query) => unlessCut(() => driver.inspect(query)),
  }
}

/** A pulse tells how long nothing ran in this process: a machine that is busy, or throttled, delays every callback. */
const pulse = { atMs: nowMs(), beforeMs: nowMs() }
setInterval(() => {
  pulse.beforeMs = pulse.atMs
  pulse.atMs = nowMs()
}, 3).unref()

/** The stall that has just ended, or is about to: whichever of the timers that are due Node runs first. */
function stalledMs() {
  return Math.max(nowMs() - pulse.atMs, pulse.atMs - pulse.beforeMs)
}

/** The machine's monotonic clock, the same in every process. */
function nowMs() {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}
