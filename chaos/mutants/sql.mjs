// @ts-check
/** @import { Mutant } from './mutant.mjs' */

const SCHEMA = 'protocol/postgres/schema.sql'
const FUNCTIONS = 'protocol/postgres/functions.sql'
const NOTIFY = 'src/drivers/postgres/notify-connection.ts'
const SQLITE = 'protocol/sqlite/statements.sql'

const RENEW = 'UPDATE holdfast_leases SET expires_at_ms = ?, ttl_ms = ?'
const WAITERS =
  '-- Inputs: lock_name, now_ms, how many at most (-1: all)\n' +
  'SELECT * FROM holdfast_waiters WHERE lock_name = ? AND expires_at_ms > ?'

/** @type {Mutant[]} */
export const sql = [
  {
    name: 'postgres-now-for-clock-timestamp',
    breaks: 'expiry is judged by the start of the transaction, which may have waited for the row',
    file: FUNCTIONS,
    search: 'v_now       CONSTANT TIMESTAMPTZ := clock_timestamp();',
    replace: 'v_now       CONSTANT TIMESTAMPTZ := now();',
    checks: [
      'test/drivers/postgres/conformance.test.ts :: through pg: .*rule 1|through pg: .*fault: ',
      'test/drivers/postgres/known-failures.test.ts',
    ],
  },
  {
    name: 'postgres-row-lock-dropped',
    breaks: 'two clients read a free row, and both take it',
    file: FUNCTIONS,
    search: 'WHERE lock_name = p_lock_name FOR UPDATE SKIP LOCKED;',
    replace: 'WHERE lock_name = p_lock_name;',
    checks: [
      'test/drivers/postgres/conformance.test.ts :: through pg: .*race for',
      'test/drivers/postgres/conformance.test.ts :: through pg: .*rule ',
      'test/drivers/postgres/known-failures.test.ts',
    ],
  },
  {
    name: 'postgres-renew-compares-no-token',
    breaks: 'a renewal for an older token prolongs a newer lease',
    file: FUNCTIONS,
    search: 'AND claim_id = p_claim_id AND (p_token IS NULL OR d.fencing_token = p_token)',
    replace: 'AND claim_id = p_claim_id',
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*rule 7'],
  },
  {
    name: 'postgres-renew-after-expiry',
    breaks: 'a renewal brings an expired lease back',
    file: FUNCTIONS,
    search: 'AND NOT contended AND expires_at > clock_timestamp()\n    RETURNING',
    replace: 'AND NOT contended\n    RETURNING',
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*rule 7'],
  },
  {
    name: 'postgres-release-compares-no-token',
    breaks: 'a late release for an older token ends a newer lease',
    file: FUNCTIONS,
    search: "AND (p_token IS NULL OR fencing_token = p_token)\n      AND mode = 'exclusive' AND NOT contended",
    replace: "AND mode = 'exclusive' AND NOT contended",
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*rule 7'],
  },
  {
    name: 'postgres-stale-token-kept',
    breaks: 'a grant that waited for its row has a lower token than a holder in between',
    file: FUNCTIONS,
    search: 'IF v_stale THEN',
    replace: 'IF false THEN',
    checks: ['test/drivers/postgres/one-claim.test.ts :: rules 1 and 8'],
  },
  {
    name: 'postgres-counter-not-checked',
    breaks: 'the first grant after a failover has a lower token than those before it',
    file: FUNCTIONS,
    search: 'IS NULL\n        AND holdfast_tokens_are_raised()',
    replace: 'IS NULL',
    checks: ['test/drivers/postgres/one-claim.test.ts :: rule 8'],
  },
  {
    name: 'postgres-queue-is-lifo',
    breaks: 'the last waiter is served first',
    file: FUNCTIONS,
    search: 'WHERE lock_name = v_name ORDER BY place LIMIT 1;\n    IF v_waiter.place IS NULL THEN',
    replace: 'WHERE lock_name = v_name ORDER BY place DESC LIMIT 1;\n    IF v_waiter.place IS NULL THEN',
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*rule 10'],
  },
  {
    name: 'postgres-limit-off-by-one',
    breaks: 'a semaphore of n has n + 1 permits',
    file: FUNCTIONS,
    search: 'v_permits + v_waiter.permits > v_waiter.max_permits)',
    replace: 'v_permits + v_waiter.permits > v_waiter.max_permits + 1)',
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*(limit|permit)'],
  },
  {
    name: 'postgres-tokens-not-raised',
    breaks: 'tokens can fall after a restart or a restored backup',
    file: FUNCTIONS,
    search: "PERFORM setval('holdfast_tokens', greatest(v_clock + v_lead, v_last + v_lead / 4));",
    replace: '',
    checks: ['test/drivers/postgres/conformance.test.ts :: through pg: .*token', 'test/drivers/postgres/clock.test.ts'],
  },
  {
    name: 'advisory-unlock-false-ignored',
    breaks: 'a connection that is not what it seems goes on holding locks',
    file: 'src/drivers/postgres-advisory/session.ts',
    search: 'if (!released.every(Boolean)) {',
    replace: 'if (released.length === 0) {',
    checks: ['test/drivers/postgres-advisory/failures.test.ts :: an unlock that the server does not know'],
  },
  {
    name: 'advisory-end-of-the-connection-unnoticed',
    breaks: 'a holder is not notified when its session ends',
    file: 'src/drivers/postgres-advisory/session.ts',
    search: 'onEnd: (cause) => session?.lose(cause),',
    replace: 'onEnd: () => undefined,',
    checks: ['test/drivers/postgres-advisory/failures.test.ts :: pg_terminate_backend loses'],
  },
  {
    name: 'advisory-locks-are-reentrant',
    breaks: 'two claims on one connection both get the lock',
    file: 'src/drivers/postgres-advisory/held-locks.ts',
    search: 'return held !== undefined && !(held.shared && shared)',
    replace: 'return held !== undefined && held.shared && !shared',
    checks: ['test/drivers/postgres-advisory/conformance.test.ts :: exclude each other'],
  },
  {
    name: 'advisory-key-of-32-bits',
    breaks: 'two lock names share a key',
    file: 'src/drivers/postgres-advisory/held-locks.ts',
    search: '.readBigInt64BE(0).toString()',
    replace: '.readInt32BE(0).toString()',
    checks: ['test/drivers/postgres-advisory/failures.test.ts :: failure 27'],
  },
  {
    name: 'sqlite-begin-without-immediate',
    breaks: 'a transaction has no write lock while it decides',
    file: 'src/drivers/sqlite/connection.ts',
    search: "this.#inTransaction('BEGIN IMMEDIATE', work, wait)",
    replace: "this.#inTransaction('BEGIN', work, wait)",
    checks: ['test/drivers/sqlite/busy.test.ts', 'test/drivers/sqlite/processes.test.ts :: failure 32'],
  },
  {
    name: 'sqlite-second-copy-allowed',
    breaks: 'two copies of SQLite in one process both have the write lock',
    file: 'src/drivers/sqlite/one-copy.ts',
    search: 'if (others.length > 0) throw new SecondCopyError(path)',
    replace: '',
    checks: ['test/drivers/sqlite/one-copy.test.ts'],
  },
  {
    name: 'sqlite-lease-is-cut',
    breaks: 'a clock that goes back for a moment ends a lease that its holder relies on',
    file: SQLITE,
    search: 'noted.expires_at_ms = holdfast_leases.expires_at_ms AND noted.found_at_ms + ttl_ms <= ?\n    AND ? NOT',
    replace: 'noted.expires_at_ms > 0 AND noted.found_at_ms <= ?\n    AND ? > 0 OR 0 NOT',
    checks: ['test/drivers/sqlite/processes.test.ts :: failure 74'],
  },
  {
    name: 'sqlite-renew-compares-no-token',
    breaks: 'a renewal for an older token prolongs a newer lease',
    file: SQLITE,
    search: `${RENEW}\nWHERE lock_name = ? AND claim_id = ? AND fencing_token = ?`,
    replace: `${RENEW}\nWHERE lock_name = ? AND claim_id = ? AND ? > 0`,
    checks: ['test/drivers/sqlite/conformance.test.ts :: rule 7'],
  },
  {
    name: 'sqlite-release-after-expiry',
    breaks: 'a release after the end of the lease answers "held"',
    file: SQLITE,
    search:
      'DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms > ?',
    replace:
      'DELETE FROM holdfast_leases WHERE lock_name = ? AND claim_id = ? AND fencing_token = ? AND expires_at_ms <> ?',
    checks: ['test/drivers/sqlite/conformance.test.ts :: rule 7'],
  },
  {
    name: 'postgres-proof-unchecked',
    breaks: 'a forged notification is taken for a grant',
    file: NOTIFY,
    search: 'else listener.granted(claimId, grant, isProved)',
    replace: 'else listener.granted(claimId, grant, () => isProved !== undefined)',
    checks: ['test/drivers/postgres/forgery.test.ts'],
  },
  {
    name: 'postgres-key-is-public',
    breaks: 'a role that may only read the tables can forge a notification',
    file: SCHEMA,
    search: 'CREATE SEQUENCE IF NOT EXISTS holdfast_key_1;',
    replace: 'CREATE SEQUENCE IF NOT EXISTS holdfast_key_1; GRANT SELECT ON holdfast_key_1 TO PUBLIC;',
    checks: ['test/drivers/postgres/forgery.test.ts'],
  },
  {
    name: 'postgres-hand-over-not-on-the-disk',
    breaks: 'a crash forgets the lease that a relaxed client has handed over',
    file: FUNCTIONS,
    search: 'v_void := holdfast_set_durability(false);',
    replace: 'v_void := false;',
    checks: ['test/drivers/postgres/durability.test.ts :: failure 36'],
  },
  {
    name: 'postgres-durability-lowered-after-a-write',
    breaks: 'a crash forgets a lease that a call has handed over before its last entry',
    file: FUNCTIONS,
    search: "v_now <> 'off' AND NOT p_written THEN",
    replace: "v_now <> 'off' THEN",
    checks: ['test/drivers/postgres/durability.test.ts :: one by one'],
  },
  {
    name: 'postgres-call-read-before-its-place-is-locked',
    breaks: 'a waiter that asked again meanwhile is not notified',
    file: FUNCTIONS,
    search: 'RETURNING channel INTO v_waiter.channel;',
    replace: ';',
    checks: ['test/drivers/postgres/proofs.test.ts :: while the release waited'],
  },
  {
    name: 'sqlite-queue-is-lifo',
    breaks: 'the last waiter is served first',
    file: SQLITE,
    search: `${WAITERS} ORDER BY place LIMIT ?`,
    replace: `${WAITERS} ORDER BY place DESC LIMIT ?`,
    checks: ['test/drivers/sqlite/conformance.test.ts :: rule 10'],
  },
  {
    name: 'sqlite-token-not-above-the-clock',
    breaks: 'tokens begin at 1 again in a new file',
    file: SQLITE,
    search: 'MAX(last_token + 1, ? * 1000)',
    replace: 'MAX(last_token + 1, ? * 0)',
    checks: ['test/protocol/vectors.test.ts', 'test/drivers/sqlite/conformance.test.ts :: token'],
  },
]
