import { connect } from '../connect.ts'
import { type Finding, unreachable } from './finding.ts'

/** Examines the store of a URL. Reads settings, and acquires and releases locks whose names begin with `doctor:`. */
export async function examine(url: string): Promise<readonly Finding[]> {
  const scheme = url.slice(0, url.indexOf(':')).toLowerCase()
  if (scheme === 'redlock') return (await import('./redlock.ts')).examineRedlock(url)
  if (/^(?:redis|valkey)/.test(scheme)) return (await import('./redis.ts')).examineRedis(url)
  if (scheme.startsWith('postgres')) {
    return (await import('./postgres.ts')).examinePostgres(url, scheme.endsWith('+advisory'))
  }
  // SQLite and memory have no server to configure. Opening a file already refuses network shares.
  const { examineUse } = await import('./use.ts')
  try {
    return await examineUse(() => connect(url), 'Give the user write access to the folder of the file.')
  } catch (error) {
    return [unreachable(error, 'Change what the message names.')]
  }
}
