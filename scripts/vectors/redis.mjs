// @ts-check
import { createHash } from 'node:crypto'
import {
  acquireArgs,
  idText,
  isOurs,
  readForced,
  readLease,
  readMessage,
  readWaiter,
  releaseArgs,
  renewArgs,
} from '../../src/drivers/redis/format.ts'
import {
  channelOf,
  isOwnKey,
  lockKeys,
  plainOfData,
  rateKey,
  siblingKey,
  slotCounter,
  slotOf,
} from '../../src/drivers/redis/keys.ts'
import { ballotCall } from '../../src/drivers/redis/proposals.ts'
import { lockNameIn } from '../../src/drivers/redlock/release-broadcast.ts'

/** @typedef {import('../../src/core/driver.ts').Claim} Claim */

export function redisKeys() {
  const names = [
    'order:123',
    'a',
    'żółw',
    '日本語',
    '🔒',
    'with space',
    '{user:7}:cart',
    'x{user:7}',
    '{}empty',
    'open{only',
    'close}only',
    '}{',
    '{{nested}}',
    'a{}b{c}',
    '{a}{b}',
    'tab\tand\nline',
  ]
  const locks = names.map((lockName) => ({ prefix: 'lock:', lockName }))
  const others = [
    { prefix: '', lockName: 'order:123' },
    { prefix: '', lockName: '{user:7}' },
    { prefix: 'app:{7}:', lockName: 'order:123' },
    { prefix: '', lockName: 'holdfast:token' },
    { prefix: 'hold', lockName: 'fast:x' },
  ]
  return {
    about:
      'Keys in Redis. locks: the own key of a lock, its siblings d and o, its Cluster slot, the token counter and ' +
      'the wake channel (of the client `client`) of that slot; `reserved` names are refused by a client. siblings: ' +
      'other kinds. slotTags: the smallest whole number that hashes to a slot, for some slots.',
    locks: [...locks, ...others].map(({ prefix, lockName }) => {
      const { plain, data, order } = lockKeys(prefix, lockName)
      const slot = slotOf(plain)
      const keys = { plain, data, order, plainOfData: plainOfData(data), slot, siblingSlot: slotOf(data) }
      const slotKeys = { counter: slotCounter(slot), channel: channelOf('client', slot) }
      return { prefix, lockName, ...keys, ...slotKeys, reserved: isOwnKey(plain) }
    }),
    siblings: [
      ...['account:7', '{account}:7', 'acc}ount'].map((key) => ({ key, kind: 'f', sibling: siblingKey(key, 'f') })),
      ...['user:7', '{user}:7', 'us}er'].map((name) => {
        const id = '10/3600000000/10'
        return { key: `lock:${name}`, kind: `r${id}`, sibling: rateKey('lock:', name, id) }
      }),
    ],
    slotTags: [0, 1, 2, 100, 5460, 5461, 10922, 10923, 12739, 16382, 16383].map((slot) => ({
      slot,
      tag: /\{(\d+)\}/.exec(slotCounter(slot))?.[1],
      counter: slotCounter(slot),
    })),
  }
}

/** 2026-03-01 12:00 UTC. */
const NOW_MS = 1_772_366_400_000
const TOKEN = 1_772_366_400_000_123

/** @type {Claim} */
const PLAIN = {
  lockName: 'order:123',
  claimId: 'Zk3v9Q.1-abcdefghijkl',
  holderId: 'worker-1',
  mode: 'exclusive',
  permits: 1,
  ttlMs: 30_000,
  waiterTtlMs: 0,
}
const METADATA = { job: 'żółw 🐢', tries: 3, rate: 0.1, nested: { list: [1, null, true, 'a"b\\c/d\n'] } }
const WITH_METADATA = { ...PLAIN, metadata: METADATA }
const WAITING = { ...PLAIN, claimId: 'Zk3v9Q.2-abcdefghijkl', waiterTtlMs: 10_000 }
const READER = { ...PLAIN, claimId: 'Zk3v9Q.3-abcdefghijkl', mode: /** @type {const} */ ('shared') }
const PERMIT = { ...READER, claimId: 'Zk3v9Q.4-abcdefghijkl', limit: 5, permits: 2 }

/** @type {{ claims: Claim[], spares?: boolean }[]} */
const acquireCalls = [
  { claims: [PLAIN] },
  { claims: [WITH_METADATA] },
  { claims: [{ ...PLAIN, metadata: {} }] },
  { claims: [{ ...PLAIN, holderId: 'a"b\\żółw' }] },
  { claims: [{ ...PLAIN, ttlMs: 1_500.2 }] },
  { claims: [WAITING] },
  { claims: [{ ...WAITING, waiterTtlMs: 10_000.5 }] },
  { claims: [READER] },
  { claims: [PERMIT] },
  { claims: [PLAIN, { ...PLAIN, lockName: 'order:124', claimId: 'Zk3v9Q.5-abcdefghijkl' }] },
  { claims: [PLAIN, PERMIT] },
  {
    claims: [
      { ...PLAIN, group: 'g1' },
      { ...PLAIN, lockName: 'b', claimId: 'Zk3v9Q.6+1', group: 'g1' },
    ],
  },
  { claims: [{ ...PLAIN, forceUpTo: Number.MAX_SAFE_INTEGER }] },
  { claims: [{ ...PLAIN, forceUpTo: TOKEN }] },
  { claims: [{ ...PLAIN, forceUpTo: 0 }] },
  { claims: [{ ...PLAIN, forceUpTo: Number.MAX_SAFE_INTEGER }], spares: true },
]

/** @typedef {import('../../src/drivers/redis/proposals.ts').ProposedClaim} ProposedClaim */

/** @type {{ proposals: ProposedClaim[], longestTtlMs: number | null }[]} */
const ballots = [
  { proposals: [proposalOf(PLAIN, TOKEN)], longestTtlMs: 60_000 },
  { proposals: [proposalOf(WITH_METADATA, TOKEN)], longestTtlMs: null },
  { proposals: [proposalOf(PLAIN, TOKEN), proposalOf({ ...PLAIN, lockName: '{b}' }, TOKEN + 1)], longestTtlMs: 60_000 },
  { proposals: [proposalOf(PLAIN, TOKEN), proposalOf(READER, TOKEN + 1)], longestTtlMs: 60_000 },
]

/**
 * @param {Claim} claim
 * @param {number} token
 */
function proposalOf(claim, token) {
  return { lockName: claim.lockName, claim, token }
}

export function redisValues() {
  return {
    about:
      'Values in Redis. ids: the JSON text of a claim’s id, which is compared byte by byte. acquire, renew, release: ' +
      'the arguments of leases.lua after its channel and secret, from ARGV[4] on; terms that are the same for all ' +
      'entries are sent once, and times are rounded up to milliseconds. ballots: the keys and arguments of ' +
      'ballot.lua, with the prefix `lock:`; without longestTtlMs, the nodes are persistent. leases: what is stored ' +
      'for a granted claim (with its token, at acquiredAtMs), and the record that a client shows of it; other: ' +
      'values of other clients. waiters: what is stored for a claim that waits, written by the server’s cjson, which ' +
      'escapes slashes.',
    ids: [
      'Zk3v9Q.1-abcdefghijkl',
      'plain',
      'quote " and backslash \\ and slash /',
      'tab\t line\n return\r back\b form\f',
      'control \u0001 \u001f and delete \u007f',
      'żółw 🐢 日本語',
      'line \u2028 and paragraph \u2029 separators',
      '<script>&amp;</script>',
    ].map((claimId) => ({ claimId, text: idText(claimId) })),
    acquire: acquireCalls.map(({ claims, spares = false }) => ({ claims, spares, args: acquireArgs(claims, spares) })),
    ballots: ballots.map(({ proposals, longestTtlMs }) => {
      const terms = { maxAheadUs: 600_000_000, longestTtlMs: longestTtlMs ?? undefined }
      const [, , count, ...rest] = ballotCall('lock:', proposals, terms)
      const [keys, args] = [rest.slice(0, Number(count)), rest.slice(Number(count))]
      return { proposals: proposals.map(({ claim, token }) => ({ claim, token })), ...terms, longestTtlMs, keys, args }
    }),
    renew: [
      [{ lockName: 'a', claimId: 'c.1', fencingToken: TOKEN, ttlMs: 30_000 }],
      [
        { lockName: 'a', claimId: 'c.1', fencingToken: TOKEN, ttlMs: 30_000 },
        { lockName: 'b', claimId: 'c.2', fencingToken: TOKEN + 1, ttlMs: 30_000 },
      ],
      [
        { lockName: 'a', claimId: 'c.1', fencingToken: TOKEN, ttlMs: 30_000 },
        { lockName: 'b', claimId: 'ü', fencingToken: TOKEN + 1, ttlMs: 250.5 },
      ],
    ].map((renewals) => ({ renewals, args: renewArgs(renewals) })),
    release: [
      [{ lockName: 'a', claimId: 'c.1', fencingToken: TOKEN }],
      [{ lockName: 'a', claimId: 'c.1' }],
      [
        { lockName: 'a', claimId: 'c.1', fencingToken: TOKEN },
        { lockName: 'b', claimId: 'c"2' },
      ],
    ].map((leases) => ({ leases, args: releaseArgs(leases) })),
    leases: [PLAIN, WITH_METADATA, { ...PLAIN, holderId: 'a"b\\żółw' }, READER, PERMIT].map((claim) => {
      const text = leaseText(claim)
      const record = readLease(claim.lockName, text, NOW_MS + claim.ttlMs)
      return { claim, token: TOKEN, acquiredAtMs: NOW_MS, text, endMs: NOW_MS + claim.ttlMs, record }
    }),
    other: [
      { text: '3f2a9c51', endMs: NOW_MS },
      { text: '', endMs: -1 },
      { text: '["only an id"]', endMs: -1 },
      { text: '["id",1,2,3]', endMs: -1 },
      { text: '{"id":1}', endMs: -1 },
      { text: '["id",1,2,3,"holder"', endMs: -1 },
      { text: 'x'.repeat(300), endMs: NOW_MS },
    ].map((each) => ({ ...each, isOurs: isOurs(each.text), record: readLease('order:123', each.text, each.endMs) })),
    waiters: [WAITING, { ...PERMIT, waiterTtlMs: 10_000 }, { ...READER, waiterTtlMs: 10_000, metadata: METADATA }].map(
      (claim) => {
        const [, , tail = ''] = acquireArgs([claim])
        const text = JSON.stringify([
          NOW_MS + claim.waiterTtlMs,
          NOW_MS,
          claim.mode === 'exclusive' ? 0 : 1,
          'limit' in claim ? claim.limit : 0,
          claim.permits,
          claim.ttlMs,
          1,
          'holdfast:wake:client',
          tail,
          'secret',
          claim.waiterTtlMs,
        ]).replaceAll('/', '\\/')
        const stored = { endMs: NOW_MS + claim.waiterTtlMs, sinceMs: NOW_MS, hears: 1, channel: 'holdfast:wake:client' }
        return {
          claim,
          ...stored,
          secret: 'secret',
          text,
          record: readWaiter(claim.lockName, idText(claim.claimId), text),
        }
      },
    ),
  }
}

/**
 * As leases.lua writes it. test/protocol/vectors.test.ts compares it with what a server has stored.
 *
 * @param {Claim} claim
 */
function leaseText(claim) {
  const [id, ttl, tail] = acquireArgs([claim])
  const sharing = claim.mode === 'exclusive' ? '' : `${claim.limit ?? 0},${claim.permits},`
  return `[${id},${TOKEN},${NOW_MS},${sharing}${ttl},${tail}]`
}

export function redisMessages() {
  const claimId = 'Zk3v9Q.2-abcdefghijkl'
  const [one, other] = ['s3cr3t-s3cr3t-16', 'an-older-secret1']
  const grant = grantMessage(claimId, one)
  return {
    about:
      'Messages in Redis. wakes: a message on the channel of a waiter’s client: a grant, with a proof; or a hint, ' +
      'without a grant. claimId null: it has neither form and is ignored. proved: whether the secret of the newest ' +
      'call proves it. forced: messages on holdfast:forced. released: messages of Redlock on holdfast:released, and ' +
      'the lock name in them; null: ignored.',
    wakes: [
      { message: grant, secret: one },
      { message: grant, secret: other },
      { message: grantMessage('a"b\\żółw 🐢', one), secret: one },
      { message: grant.replace('30000', '60000'), secret: one },
      { message: grant.replace(`${TOKEN}`, `${TOKEN + 1}`), secret: one },
      { message: JSON.stringify([claimId]), secret: one },
      { message: '[]', secret: one },
      { message: '["a",1,2]', secret: one },
      { message: '["a",0,2,3,"p"]', secret: one },
      { message: '["a",1.5,2,3,"p"]', secret: one },
      { message: '["a",9007199254740993,2,3,"p"]', secret: one },
      { message: '["a",1,2,3,4]', secret: one },
      { message: '[1,1,2,3,"p"]', secret: one },
      { message: '{"a":1}', secret: one },
      { message: 'not JSON', secret: one },
      { message: '["cut off', secret: one },
    ].map(({ message, secret }) => {
      const read = readMessage(message)
      if (read === undefined) return { message, secret, claimId: null }
      const { granted: _, ...terms } = read.grant ?? {}
      const isGrant = read.grant !== undefined
      return {
        message,
        secret,
        claimId: read.claimId,
        ...(isGrant && { grant: terms, proved: read.isProvedBy(secret) }),
      }
    }),
    forced: [
      '{"lost":["c.1"],"by":"worker-2"}',
      '{"lost":["c.1","żółw","a\\"b"],"by":"ada"}',
      '{"lost":[],"by":"ada"}',
      '{"lost":"c.1","by":"ada"}',
      '{"lost":["c.1"]}',
      '{"by":"ada"}',
      '["c.1"]',
      '{"lost":["c.1"',
    ].map((message) => ({ message, expected: readForced(message) ?? null })),
    released: [
      '["order:123","c.1","3f2a9c51"]',
      '["żółw","c.1","3f2a9c51"]',
      '["order:123"]',
      '[1,"c.1","3f2a9c51"]',
      '{"lockName":"order:123"}',
      'not JSON',
    ].map((message) => ({ message, lockName: lockNameIn(message) ?? null })),
  }
}

/**
 * @param {string} claimId
 * @param {string} secret
 */
function grantMessage(claimId, secret) {
  const told = `${idText(claimId)},${TOKEN},${NOW_MS},30000`
  const proof = createHash('sha1').update(`${secret}${told}${secret}`).digest('hex')
  return `[${told},"${proof}"]`
}
