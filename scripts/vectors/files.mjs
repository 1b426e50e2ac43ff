// @ts-check
import { claimIds } from './claim-ids.mjs'
import { activityComments, advisoryKeys, postgresArrays, postgresNotifications } from './postgres.mjs'
import { rateLimits, rateSteps } from './rates.mjs'
import { redisKeys, redisMessages, redisValues } from './redis.mjs'
import { tokens } from './tokens.mjs'

/**
 * The content of each file: `about` says what it shows, each other member is a list of examples.
 *
 * @returns {Record<string, { about: string }>}
 */
export function vectorFiles() {
  return {
    'advisory-keys.json': advisoryKeys(),
    'claim-ids.json': claimIds(),
    'postgres-activity-comments.json': activityComments(),
    'postgres-arrays.json': postgresArrays(),
    'postgres-notifications.json': postgresNotifications(),
    'rate-limits.json': rateLimits(),
    'rate-steps.json': rateSteps(),
    'redis-keys.json': redisKeys(),
    'redis-messages.json': redisMessages(),
    'redis-values.json': redisValues(),
    'tokens.json': tokens(),
  }
}
