import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'

type Main = typeof import('holdfast')
type Redis = typeof import('holdfast/drivers/redis')
type Redlock = typeof import('holdfast/drivers/redlock')
type Postgres = typeof import('holdfast/drivers/postgres')
type Advisory = typeof import('holdfast/drivers/postgres-advisory')

/** The built package under test. */
export type Library = Main &
  Pick<Redis, 'redisDriver'> &
  Pick<Redlock, 'redlockDriver'> &
  Pick<Postgres, 'postgresDriver' | 'migratePostgres'> &
  Pick<Advisory, 'postgresAdvisoryDriver' | 'advisoryKey'>

/** `dist` is the folder of the build. */
export async function loadLibrary(dist: string): Promise<Library> {
  const load = async <Module>(file: string): Promise<Module> => import(pathToFileURL(resolve(dist, file)).href)
  const main = await load<Main>('index.js')
  const redis = await load<Redis>('drivers/redis.js')
  const redlock = await load<Redlock>('drivers/redlock.js')
  const postgres = await load<Postgres>('drivers/postgres.js')
  const advisory = await load<Advisory>('drivers/postgres-advisory.js')
  return { ...main, ...redis, ...redlock, ...postgres, ...advisory }
}
