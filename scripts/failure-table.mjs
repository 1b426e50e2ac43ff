// @ts-check
// Writes the tables of docs/failures.md: how locks fail, and the tests that provoke each failure. A test names the
// failure in its title: "failure 12: …" or "failures 5, 18: …". A fault of other libraries names titles.
//
//   node scripts/failure-table.mjs           writes the table
//   node scripts/failure-table.mjs --check   fails if it is out of date, or if a failure has no test
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { isMain, root } from './support/command.mjs'

const PAGE = 'docs/failures.md'

/** @type {readonly [number: number, failure: string, outcome: string][]} */
const failures = [
  [1, 'a holder is paused past its TTL', 'its write is refused by its token, and `held` is false when it wakes'],
  [2, 'the event loop is blocked, and a renewal runs before the expiry check', 'the deadline is checked first'],
  [3, 'the machine is suspended, and the monotonic clock stops', 'the wall clock ends the lease'],
  [4, 'the clock of the store jumps forward', 'the second grant has a higher token'],
  [5, 'the clock of the store jumps back', 'tokens rise, and a forced release ends a lease that is too long'],
  [6, 'the clock of a client is wrong', 'nothing changes'],
  [7, 'Redis fails over before it has replicated', 'the next token is higher; waiting for replicas refuses'],
  [8, 'an old master accepts writes', 'tokens fence it off'],
  [9, 'a write of an old holder arrives late', 'its token is refused'],
  [10, 'an acquire is granted after the client gave up', 'the lease is released again'],
  [11, 'a reply is lost, and the grant is kept', 'asking again returns the same lease'],
  [12, 'a release comes after the expiry', 'it returns false, and the successor keeps its lease'],
  [13, 'an extension comes after the expiry', 'it returns false, and creates nothing'],
  [14, 'a renewal is in flight during the release', 'the lock stays released'],
  [15, 'a waiter is granted the lock after its claim has ended', 'the claim is checked again'],
  [16, 'a Redlock node restarts empty', 'it does not vote until the longest TTL has passed'],
  [17, 'a Redlock minority is left behind', 'it is released on all nodes'],
  [18, 'the counter of the tokens is lost', 'the next token is higher nevertheless'],
  [19, 'Redis evicts the keys of locks', 'a warning at the start'],
  [20, 'the script cache is lost', 'the script is sent again'],
  [21, 'a Cluster moves a slot', 'the same claim is asked again'],
  [22, 'PgBouncer in transaction mode is between client and session locks', 'it is detected and refused'],
  [23, 'a lock is unlocked on another connection of a pool', 'the connection is pinned'],
  [24, 'locks starve the pool of the application', 'locks share one connection beside it'],
  [25, 'a timeout of PostgreSQL ends the session of a holder', 'the lease is lost at once'],
  [26, 'a connection is half open', 'deadlines do not depend on errors of sockets'],
  [27, 'two names have one advisory key', 'keys have 64 bits'],
  [28, 'the lock table of PostgreSQL is full', 'an error, and nothing is half-held'],
  [29, 'a subscription is lost', 'the client subscribes again and asks'],
  [30, 'a release is published before the waiter has subscribed', 'the waiter asks after it has subscribed'],
  [31, 'the first waiter dies', 'the queue goes on within a stated bound'],
  [32, 'SQLite is busy, on a network share, or used after a fork', 'retried within bounds, or refused'],
  [33, 'a command outlives its lock', 'its process group is ended before the lease'],
  [34, 'work hangs, and its heartbeat goes on', '`maxHoldSeconds` ends it'],
  [35, 'a release wakes every waiter', 'the cost of a hand-off does not grow with the waiters'],
  [36, 'the store announces a grant, and cannot write it', 'nothing is announced before it is written'],
  [37, 'a message comes through a replica, or too late', 'a message proves no more than the store does'],
  [38, 'a message is forged', 'it is ignored'],
  [39, 'a client library sends a command again, after its successor', 'a late answer counts for nothing'],
  [40, 'a lock is taken in an open transaction of the caller', 'it is refused'],
  [41, 'session locks are re-entrant on one connection', 'a connection has one driver'],
  [42, 'one file has two names', 'it is refused, or noticed before the next grant'],
  [43, 'a clock that was ahead leaves rows from the future', 'they are shortened'],
  [44, 'one locked row delays a list', 'only its own entry is unknown'],
  [45, 'work grows with the waiters', 'it is bounded, and renewals do not wait for it'],
  [46, 'a migration waits for a reader, and everyone for the migration', 'it gives up soon, and tries again'],
  [47, 'the context of a lock leaks into a timer or a listener', 'callbacks run outside of it'],
  [48, 'a loop on a local store starves the timers', 'the event loop gets its turns'],
  [49, 'another task ends a lease under a running function', 'the function is notified, and the call rejects'],
  [50, 'a waiter counts as deadlocked without a cycle', 'only locks around it count'],
  [51, 'a store has more leases than fit on the stack', 'they are read in pages'],
  [52, 'a password appears in an error', 'never'],
  [53, 'a confirmation survives a reconnect', 'it is bound to one connection'],
  [54, 'a migrating slot refuses calls with several keys', 'a renewal needs one key'],
  [55, 'a part of a URL is ignored', 'every part is understood or refused'],
  [56, 'two policies share a rate-limit key', 'each limit keeps its own state'],
  [57, 'a Cluster client knows only replicas', 'every answer comes after a write, which a replica refuses'],
  [58, 'one of several uses of a lease ends it', 'the last use releases it, and the others are notified'],
  [59, 'a Redlock node fails over to a lagging replica', 'it does not vote for the longest TTL from then on'],
  [60, 'a Redlock node restarts with a wrong clock', 'its uptime decides nothing'],
  [61, 'Redlock nodes are restarted one after the other', 'a quorum that renews repairs the lease'],
  [62, 'one node of several hangs', 'the others answer without it'],
  [63, 'a server is at its memory limit', 'leases are renewed and released'],
  [64, 'a count that is kept beside its entries drifts', 'an entry that is written over is not counted twice'],
  [65, 'a failover forgets who listens', 'a waiter that is alive keeps its place'],
  [66, 'a server that hangs fills the queue of the client', 'unanswered commands are bounded'],
  [70, 'a statement that waits for long keeps its snapshot', 'the oldest snapshot is seconds old'],
  [76, 'an object only looks like a transaction', 'the server proves that one is open, or it is refused'],
  [77, 'the application has used up the pool that it passed in', 'renewals have a connection of their own'],
  [67, 'a plan depends on statistics', 'each look-up can use one index'],
  [68, 'a release starves beside claims that share its row', 'later claims wait behind it'],
  [69, 'a lock is handed to a waiter that polls too late', 'the grant lasts until the waiter can have asked'],
  [71, 'a duration has days, in a time zone whose clock changes', 'durations are milliseconds'],
  [72, 'a database is put back from a copy of some seconds ago', 'tokens rise'],
  [79, 'the result of a once-only job cannot be kept', 'the job counts as run'],
  [80, 'the event loop is blocked while the answer has arrived', 'the answer counts'],
  [85, 'a store was away for several ticks of a schedule', 'at most one late run, never two at a time'],
  [86, 'a listener throws what cannot be printed', 'a warning, and nothing else changes'],
]

/**
 * Faults that were reproduced in other libraries. Words in the titles of the tests that none of our drivers has them.
 *
 * @type {readonly [fault: string, ...titles: string[]][]}
 */
const faults = [
  [
    'acquire never settles when an even number of Redlock nodes split the vote',
    'a split vote of an even number of nodes settles',
  ],
  ['the client locks itself out after a lost reply', 'failure 11:'],
  ['a lock that has already expired is returned after a slow quorum', 'fault: a grant whose reply arrives after'],
  ['the signal of a loss waits for the retries of the renewal', 'the signal comes no later than the lease ends'],
  [
    'the holder is not notified when the store is killed, is restarted empty, or hangs',
    'fault: a job under withLock is notified when the store hangs',
    'fault: a holder learns from the next heartbeat',
    'rule 3: a holder that is cut off is notified',
  ],
  ['an acquire whose reply arrives after the lease has ended is granted', 'fault: a grant whose reply arrives after'],
  ['a release after the expiry hides the result of the job', 'fault: a lease that ended during the job'],
  ['a silent Redlock node makes every acquire wait for it or fail', 'failure 26:'],
  ['a quorum below the majority is accepted', 'a quorum below the majority is refused'],
  ['`isLocked` is false when the store is down', 'fault: isLocked and inspect of a store that is down'],
  ['one failed renewal ends a healthy lease', 'fault: one renewal that fails does not end'],
  [
    'renewals become a hot loop for a short TTL',
    'fault: a short TTL does not make the heartbeat a hot loop',
    'fault: renewals that fail are not repeated in a hot loop',
  ],
  ['a renewal that times out is an unhandled rejection', 'fault: a renewal that times out causes no unhandled'],
  ['a semaphore ends the permits of others by the TTL of the caller', 'fault: a semaphore’s permits are never ended'],
  ['a client clock that is ahead makes two holders of one permit', 'failure 6: a client whose clock is 11 s ahead'],
  ['`attempts: 0` returns true without the lock', 'fault: blockingTimeoutSeconds: 0 never says acquired'],
  ['after an expiry, the new holder cannot release, and the stale one can', 'fault: after an expiry takeover'],
  ['one lease ends at different times on different stores', 'fault: a lease ends when its time to live is over'],
  [
    'PostgreSQL: two holders, because the row is read without a lock',
    'fault: of two processes that race for an expired lease',
  ],
  ['an abort of the job aborts the release', 'rule 6: an abort of the job does not abort the release'],
  [
    'token and lock are set in two steps, and the stale holder has the higher token',
    'fault: processes that race for a lock hold it in the order of their tokens',
  ],
  [
    'tokens begin at 1 again after a flush, and are kept for every name',
    'failure 18:',
    'leaves nothing in process and store',
  ],
  ['scripts use keys that are not declared', 'all keys of a lock are in the slot of its plain key'],
  ['the end of a connection is an uncaught exception', 'pg_terminate_backend loses every lease'],
  [
    'resigning gives the connection back without unlocking',
    'resigning aborts the signal first, then elects the next',
    'a released lock can be acquired at once by another process',
  ],
  ['the leader is not notified of a lost connection', 'rule 3: a holder that is cut off is notified'],
  ['opposing orders of locks deadlock', 'opposing orders do not deadlock'],
  [
    'rate limits: periods below a second do not end, twice the limit passes, what is thrown is no Error',
    'fault: a period below one second ends',
    'fault: no more pass at the edge of a window',
    'consumeOrThrow rejects with an error',
  ],
]

/** The page as it should be, and the failures without a test. */
export function failurePage() {
  const tests = testsByFailure()
  const found = testsByTitle()
  const rows = failures.map(([number, failure, outcome]) => {
    const files = [...(tests.get(number) ?? [])]
    return `| ${number} | ${failure} | ${outcome} | ${files.map(linked).join('<br>')} |\n`
  })
  const before = readFileSync(`${root}${PAGE}`, 'utf8')
  const head = '| # | what fails | what happens | tests |\n| --- | --- | --- | --- |\n'
  const faultRows = faults.map(([fault, ...titles]) => {
    const files = new Set(titles.flatMap((title) => [...(found.get(title) ?? [])]))
    return `| ${fault} | ${[...files].map(linked).join('<br>')} |\n`
  })
  const faultHead = '| fault | tests |\n| --- | --- |\n'
  const text = withTable(withTable(before, 'failures', head + rows.join('')), 'faults', faultHead + faultRows.join(''))
  const untested = [
    ...failures.flatMap(([number]) => (tests.has(number) ? [] : [`failure ${number}`])),
    ...faults.flatMap(([, ...titles]) => titles.filter((title) => !found.has(title))),
  ]
  return { file: PAGE, before, text, untested }
}

/**
 * @param {string} page
 * @param {string} name
 * @param {string} table
 */
function withTable(page, name, table) {
  const [begin, end] = [`<!-- ${name}:begin -->\n`, `<!-- ${name}:end -->`]
  const [from, to] = [page.indexOf(begin), page.indexOf(end)]
  if (from === -1 || to === -1) throw new Error(`${PAGE} has no marks for its table of ${name}`)
  return `${page.slice(0, from + begin.length)}${table}${page.slice(to)}`
}

/** @param {string} file */
const linked = (file) => `[${file.replace(/^(src\/)?test(ing)?\//, '').replace(/\.ts$/, '')}](../${file})`

/** @returns {Map<number, Set<string>>} */
function testsByFailure() {
  const found = new Map()
  for (const file of sources('src/testing').concat(sources('test'))) {
    const code = readFileSync(`${root}${file}`, 'utf8').replaceAll(/^\s*(\/\/|\*|\/\*).*$/gm, '')
    for (const [, numbers = ''] of code.matchAll(/\bfailures? (\d+(?:, \d+)*)/g)) {
      for (const number of numbers.split(', ').map(Number)) {
        found.set(number, (found.get(number) ?? new Set()).add(file))
      }
    }
  }
  return found
}

/**
 * The files that have a test with these words in its title.
 *
 * @returns {Map<string, Set<string>>}
 */
function testsByTitle() {
  const found = new Map()
  const titles = new Set(faults.flatMap(([, ...titles]) => titles))
  for (const file of sources('src/testing').concat(sources('test'))) {
    const code = readFileSync(`${root}${file}`, 'utf8').replaceAll(/^\s*(\/\/|\*|\/\*).*$/gm, '')
    for (const title of titles) if (code.includes(title)) found.set(title, (found.get(title) ?? new Set()).add(file))
  }
  return found
}

/** @param {string} folder */
function sources(folder) {
  return readdirSync(`${root}${folder}`, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.ts'))
    .map((name) => `${folder}/${name}`)
    .sort()
}

if (isMain(import.meta.url)) {
  const { file, before, text, untested } = failurePage()
  for (const which of untested) console.error(`no test for: ${which}`)
  const isStale = text !== before
  if (!process.argv.includes('--check')) writeFileSync(`${root}${file}`, text)
  else if (isStale) console.error(`${file} is out of date: npm run failures`)
  process.exitCode = untested.length > 0 || (isStale && process.argv.includes('--check')) ? 1 : 0
}
