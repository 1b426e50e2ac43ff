// @ts-check
import { booleanArray, numberArray, parseBooleans, parseNumbers, textArray } from '../../src/drivers/postgres/arrays.ts'
import { parseEvents, parseForced } from '../../src/drivers/postgres/notify-connection.ts'
import { readActivityComment, writeActivityComment } from '../../src/drivers/postgres-advisory/activity-comment.ts'
import { advisoryKey } from '../../src/drivers/postgres-advisory/held-locks.ts'

export function advisoryKeys() {
  return {
    about:
      'The key of a lock name among PostgreSQL advisory locks: the first eight bytes of the SHA-256 of its UTF-8 ' +
      'form, as a signed big-endian number, in decimal.',
    vectors: [
      'a',
      'order:123',
      'daily-report',
      'lock:user:42:profile-update',
      ' ',
      'ü',
      '\u00e9',
      'e\u0301',
      '日本語',
      '🔒',
      'x'.repeat(255),
      "'; DROP TABLE distributed_locks; --",
      'a/b*c',
    ].map((lockName) => ({ lockName, key: advisoryKey(lockName) })),
  }
}

export function postgresArrays() {
  return {
    about:
      'PostgreSQL array literals as text. texts, numbers, booleans: how lists are sent; null is an empty text or 0. ' +
      'readNumbers, readBooleans: how lists that the server sends are read. A missing array reads as an empty list.',
    texts: [
      [],
      ['a'],
      ['a', 'b,c', '{d}', ' ', ''],
      ['quote "', 'backslash \\', '\\"', "apostrophe '"],
      [null, 'NULL', 'null'],
      ['żółw 🐢', 'line\nbreak', 'tab\t'],
    ].map((values) => ({ values, literal: textArray(values.map((value) => value ?? undefined)) })),
    numbers: [[], [1, 2, 3], [0, -1, null], [9_007_199_254_740_991, 1.5, 0.1]].map((values) => ({
      values,
      literal: numberArray(values.map((value) => value ?? undefined)),
    })),
    booleans: [[], [true], [true, false, true]].map((values) => ({ values, literal: booleanArray(values) })),
    readNumbers: [null, '{}', '{1,2,3}', '{-1,9007199254740991}', '{1.5,0.1,1e-05,1e+20}'].map((literal) => ({
      literal,
      values: parseNumbers(literal),
    })),
    readBooleans: [null, '{}', '{t}', '{t,f,NULL}'].map((literal) => ({
      literal,
      values: parseBooleans(literal).map((value) => value ?? null),
    })),
  }
}

export function postgresNotifications() {
  return {
    about:
      'Payloads of PostgreSQL notifications. events: on the channel of a process, and whether each is proved by the ' +
      'key, for the call; a grant of null is a hint to ask again; events of another form are ignored. forced: on ' +
      'holdfast_stolen; null: ignored.',
    events: [
      JSON.stringify([GRANT]),
      JSON.stringify([GRANT, WAKE]),
      JSON.stringify([GRANT.with(1, '1'), WAKE.with(0, 'c.1')]),
      JSON.stringify([GRANT.with(1, '0')]),
      JSON.stringify([GRANT.with(1, '9007199254740993')]),
      JSON.stringify([GRANT.with(2, '')]),
      JSON.stringify([GRANT.with(3, '-1')]),
      JSON.stringify([GRANT.slice(0, 4), WAKE]),
      '[["c.1",1,2,3,"proof"]]',
      '[["granted","c.1","order:123"]]',
      '[]',
      '["c.1","1","2","3","proof"]',
      '{"granted":"c.1"}',
      'null',
      'not JSON',
      '',
    ].map((payload) => ({
      payload,
      key: KEY,
      call: CALL,
      events: parseEvents(payload).map(({ claimId, grant, isProvedBy }) => ({
        claimId,
        grant: grant
          ? { fencingToken: grant.fencingToken, acquiredAtMs: grant.acquiredAtMs, ttlMs: grant.ttlMs }
          : null,
        proved: isProvedBy(KEY, CALL),
      })),
    })),
    forced: [
      '{"lost": ["c.1"], "by": "worker-2"}',
      '{"lost": ["c.1", "żółw"], "by": "a\\"b"}',
      '{"lost": [], "by": "ada"}',
      '{"lost": ["c.1", 7, null], "by": "ada"}',
      '{"lost": "c.1", "by": "ada"}',
      '{"by": "ada"}',
      '[]',
      'not JSON',
    ].map((payload) => ({ payload, expected: parseForced(payload) ?? null })),
  }
}

const KEY = '4f1c6f0e1e5e4d0fa2b7b8a9c3d2e1f04f1c6f0e1e5e4d0fa2b7b8a9c3d2e1f0'
const CALL = 'x7Jr0q2m'
// As the server sends them. Their proofs are from its function holdfast_send_events.
const GRANT = [
  'c.1',
  '1772366400000123',
  '1772366400000.456000',
  '30000.000000',
  'ed743059fa71433583c9e632c562b1fa7da069114415d89e5219547392c858a1',
]
const WAKE = ['żółw', '', '', '', '107a278d45a6d7be060d0469a47494902f3f71c9f683e1dada2e7ea91a1834ce']

const HELD = { lockName: 'order:123', claimId: 'c.1', holderId: 'worker-1', shared: false }
const GRANTED = { ...HELD, fencingToken: 1_772_366_400_000_123, acquiredAtMs: 1_772_366_400_000 }
const REQUESTED = { ...HELD, lockName: 'a/b*c */ x', claimId: 'c.2', shared: true }

/** Twelve leases, compressed once: another version of the compressor may choose other bytes. */
const COMPRESSED =
  'ZdA7DoMwEEXRvbieRB7/na0gqoQqBZKbbB/xAGl4aW51qjtNbh2fZby8E/d+7v2t47uMhzrxohJmuYiCKJFgSQAJRKIlESQSSZYkkEQkW5JBMpFi' +
  'SQEpRKolFaQSaZY0kEakW9JBOq/zt3fHX/0bfD98LubHuk+eNw=='

export function activityComments() {
  return {
    about:
      'The comment by which a connection of the advisory driver shows its leases and requests. comments: how it is ' +
      'written if its JSON fits into maxBytes. queries: what a client reads from the beginning of a query, also from ' +
      'a compressed comment (whose bytes depend on the compressor, so they are only read here) and from one that was ' +
      'cut off; null: the query has no such comment.',
    comments: [
      { entries: [], maxBytes: 1_024 },
      { entries: [GRANTED], maxBytes: 1_024 },
      { entries: [REQUESTED, GRANTED], maxBytes: 1_024 },
      { entries: [{ ...GRANTED, lockName: 'żółw 🐢', holderId: 'a"b' }], maxBytes: 1_024 },
      { entries: [GRANTED], maxBytes: 24 },
    ].map(({ entries, maxBytes }) => ({ entries, maxBytes, comment: writeActivityComment(entries, maxBytes) })),
    queries: [
      null,
      'SELECT 1',
      '/* another comment */ SELECT 1',
      '/*holdfast [] */SELECT 1',
      `${writeActivityComment([REQUESTED, GRANTED], 1_024)}SELECT 1`,
      `/*holdfast ${COMPRESSED} */SELECT 1`,
      writeActivityComment([GRANTED], 1_024).slice(0, 60),
      '/*holdfast not base64 and not JSON */SELECT 1',
    ].map((query) => ({ query, entries: readActivityComment(query) ?? null })),
  }
}
