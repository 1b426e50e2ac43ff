// @ts-check
// The functions of a worker (see worker.ts) of test/primitives/election/processes.test.ts, on the built package.
import { connect, LeaderElection } from 'holdfast'

/** @typedef {{ atMs: number, reason: string, stalledMs: number }} Demotion */
/** @typedef {{ election: LeaderElection, term?: import('holdfast').Term, demotions: Demotion[] }} Candidate */

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

/** Resolves with the time of the election. @param {string} name */
export async function campaign(name) {
  const candidate = /** @type {Candidate} */ (candidates.get(name))
  candidate.demotions = []
  candidate.term = await candidate.election.campaign({
    value: process.pid,
    onDemoted: (_, reason) => candidate.demotions.push({ atMs: nowMs(), reason: reason.code, stalledMs: stalledMs() }),
  })
  return { term: candidate.term.term, atMs: nowMs() }
}

/** Reads `held` first: after a pause, it must be right before any timer or message has run. @param {string} name */
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

/** Simulates a cut connection for a store without a network: calls hang, and then fail. @param {boolean} on */
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
    acquire: (claims, call) => unlessCut(() => driver.acquire(claims, call)),
    renew: (renewals) => unlessCut(() => driver.renew(renewals)),
    release: (leases) => unlessCut(() => driver.release(leases)),
    inspect: (query) => unlessCut(() => driver.inspect(query)),
  }
}

/** Measures for how long nothing ran in this process: a busy or throttled machine delays every callback. */
const pulse = { atMs: nowMs(), beforeMs: nowMs() }
setInterval(() => {
  pulse.beforeMs = pulse.atMs
  pulse.atMs = nowMs()
}, 3).unref()

/** The stall that has just ended, or that ends with the next pulse: Node may run either timer first. */
function stalledMs() {
  return Math.max(nowMs() - pulse.atMs, pulse.atMs - pulse.beforeMs)
}

/** The machine's monotonic clock, the same in every process. */
function nowMs() {
  const [seconds, nanoseconds] = process.hrtime()
  return seconds * 1_000 + nanoseconds / 1_000_000
}
