import { expect, it } from 'vitest'
import { StoreError } from '../../src/core/errors.ts'
import { storeErrorFrom as postgresError } from '../../src/drivers/postgres/errors.ts'
import { storeErrorFrom as redisError } from '../../src/drivers/redis/errors.ts'
import { storeErrorFrom as sqliteError } from '../../src/drivers/sqlite/errors.ts'
import { unreadableValues } from '../harness/unreadable.ts'

it.each(Object.entries(unreadableValues()))('%s, thrown by a client, becomes a StoreError', (_, thrown) => {
  for (const error of [
    postgresError(thrown),
    redisError('acquire', thrown, { place: 'redis://localhost' }),
    sqliteError(thrown, 'locks.db'),
  ]) {
    expect(error).toBeInstanceOf(StoreError)
    expect(error.cause).toBeInstanceOf(Error)
  }
})
