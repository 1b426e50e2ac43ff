// @ts-check
// Writes the test vectors of protocol/vectors from the built TypeScript client. Tests of every language check them.
//
//   npm run vectors   builds, and writes the files
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import { isMain, root, runTool } from './support/command.mjs'
import { claimIds } from './vectors/claim-ids.mjs'
import { activityComments, advisoryKeys, postgresArrays, postgresNotifications } from './vectors/postgres.mjs'
import { rateLimits, rateSteps } from './vectors/rates.mjs'
import { redisKeys, redisMessages, redisValues } from './vectors/redis.mjs'
import { tokens } from './vectors/tokens.mjs'

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

/**
 * The files that are not what the client computes.
 *
 * @returns {{ file: string, text: string }[]}
 */
export function staleVectors() {
  return Object.entries(vectorFiles()).flatMap(([name, content]) => {
    const file = `protocol/vectors/${name}`
    const text = `${JSON.stringify(content, null, 2)}\n`
    const stored = existsSync(`${root}${file}`) ? JSON.parse(readFileSync(`${root}${file}`, 'utf8')) : undefined
    return isDeepStrictEqual(stored, JSON.parse(text)) ? [] : [{ file, text }]
  })
}

if (isMain(import.meta.url)) {
  const stale = staleVectors()
  for (const { file, text } of stale) writeFileSync(`${root}${file}`, text)
  const files = stale.map(({ file }) => file)
  const formatted = files.length > 0 && (await runTool('@biomejs/biome/bin/biome', ['format', '--write', ...files]))
  if (formatted && formatted.code !== 0) throw new Error(formatted.output)
  for (const file of files) console.log(`wrote ${file}`)
}
