// @ts-check
/** @import { Ability, DriverName, Entry, Kind } from '../types.d.ts' */

/** @type {readonly Ability[]} */
const LOCK = ['pair', 'hold', 'wait']

/**
 * The first of a driver is its floor: what the store itself allows through the same client.
 *
 * @type {readonly Entry[]}
 */
export const entries = [
  entry('SET NX PX, compare and delete', 'floor', 'redis', 'redis-floor', ['pair']),
  entry('token by BLPOP', 'floor', 'redis', 'redis-floor', ['hold']),
  entry('INCR', 'floor', 'redis', 'redis-floor', ['consume']),
  entry('async-mutex', 'floor', 'redis', 'async-mutex', ['wait']),
  entry('holdfast', 'holdfast', 'redis', 'holdfast', [...LOCK, 'keep', 'consume']),
  {
    ...entry('holdfast, local share', 'variant', 'redis', 'holdfast', ['consume']),
    variant: 'local share',
    slow: true,
  },
  { ...entry('redlock', 'peer', 'redis', 'redlock-package', [...LOCK, 'keep']), slow: true },
  entry('redis-semaphore', 'peer', 'redis', 'redis-semaphore', [...LOCK, 'keep']),
  entry('@verrou/core', 'peer', 'redis', 'verrou', LOCK),
  entry('rate-limiter-flexible', 'peer', 'redis', 'rate-limiter-flexible', ['consume']),

  entry('SET NX PX, compare and delete', 'floor', 'node-redis', 'node-redis-floor', ['pair']),
  entry('token by BLPOP', 'floor', 'node-redis', 'node-redis-floor', ['hold']),
  entry('async-mutex', 'floor', 'node-redis', 'async-mutex', ['wait']),
  entry('holdfast', 'holdfast', 'node-redis', 'holdfast', LOCK),
  entry('simple-redis-mutex', 'peer', 'node-redis', 'simple-redis-mutex', LOCK),

  entry('INSERT ON CONFLICT, DELETE', 'floor', 'postgres', 'postgres-floor', ['pair']),
  entry('pg_advisory_lock', 'floor', 'postgres', 'advisory-floor', ['hold']),
  entry('upsert', 'floor', 'postgres', 'postgres-floor', ['consume']),
  entry('async-mutex', 'floor', 'postgres', 'async-mutex', ['wait']),
  entry('holdfast', 'holdfast', 'postgres', 'holdfast', [...LOCK, 'keep', 'consume']),
  {
    ...entry('holdfast, relaxed', 'variant', 'postgres', 'holdfast', ['pair', 'hold']),
    variant: 'relaxed',
    slow: true,
  },
  {
    ...entry('holdfast, local share', 'variant', 'postgres', 'holdfast', ['consume']),
    variant: 'local share',
    slow: true,
  },
  entry('@verrou/core', 'peer', 'postgres', 'verrou', LOCK),
  entry('rate-limiter-flexible', 'peer', 'postgres', 'rate-limiter-flexible', ['consume']),

  entry('pg_try_advisory_lock, unlock', 'floor', 'advisory', 'advisory-floor', ['pair']),
  entry('pg_advisory_lock', 'floor', 'advisory', 'advisory-floor', ['hold']),
  entry('async-mutex', 'floor', 'advisory', 'async-mutex', ['wait']),
  entry('holdfast', 'holdfast', 'advisory', 'holdfast', LOCK),
  // It opens a connection for each lock.
  { ...entry('advisory-lock', 'peer', 'advisory', 'advisory-lock', ['pair', 'hold']), maxAtOnce: 64, slow: true },

  entry('INSERT, DELETE', 'floor', 'sqlite', 'sqlite-floor', ['pair']),
  entry('async-mutex', 'floor', 'sqlite', 'async-mutex', ['wait']),
  entry('holdfast', 'holdfast', 'sqlite', 'holdfast', [...LOCK, 'keep']),

  entry('async-mutex', 'floor', 'memory', 'async-mutex', ['pair', 'wait']),
  entry('holdfast', 'holdfast', 'memory', 'holdfast', ['pair', 'wait', 'consume']),
  {
    ...entry('holdfast, prometheus', 'variant', 'memory', 'holdfast', ['pair', 'consume']),
    variant: 'prometheus',
    slow: true,
  },
  {
    ...entry('holdfast, opentelemetry', 'variant', 'memory', 'holdfast', ['pair', 'consume']),
    variant: 'opentelemetry',
    slow: true,
  },
  entry('rate-limiter-flexible', 'peer', 'memory', 'rate-limiter-flexible', ['consume']),

  entry('five SET NX PX to quorum', 'floor', 'redlock', 'redlock-floor', ['pair']),
  entry('holdfast', 'holdfast', 'redlock', 'holdfast', LOCK),
  entry('redlock', 'peer', 'redlock', 'redlock-package', LOCK),
  entry('redis-semaphore', 'peer', 'redlock', 'redis-semaphore', LOCK),
]

/**
 * @param {string} title
 * @param {Kind} kind
 * @param {DriverName} driver
 * @param {string} module
 * @param {readonly Ability[]} does
 * @returns {Entry}
 */
function entry(title, kind, driver, module, does) {
  return { title, kind, driver, module, does }
}
