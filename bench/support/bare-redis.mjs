// @ts-check
import { createHash } from 'node:crypto'

/** The release of a hand-written lock. */
export const COMPARE_AND_DELETE =
  "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"

export const COMPARE_AND_DELETE_SHA = createHash('sha1').update(COMPARE_AND_DELETE).digest('hex')
