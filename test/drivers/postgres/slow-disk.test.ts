import assert from 'node:assert/strict'
import pg from 'pg'
import { describe, it } from 'vitest'
import { postgresDriver } from '../../../src/drivers/postgres.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { slowDisk } from '../../harness/clock-shim.ts'
import { claimOn, unique } from '../../harness/postgres-context.ts'
import { startPostgres } from '../../harness/servers.ts'

/** While a file of a table grows, all who need a new page of it wait, as they do for a locked row. */
describe('postgres: a disk that is slow', { timeout: 120_000 }, () => {
  it('costs a list of claims on free names no answer', async () => {
    await using scene = await openScene()
    scene.disk.delay(60)
    const answers = await Promise.all(
      Array.from({ length: 6 }, () =>
        scene.driver.acquire(
          // Each row takes half a page, so that every list needs many new ones.
          Array.from({ length: 4 }, () => ({ ...claimOn(unique('free')), metadata: { text: 'x'.repeat(3_500) } })),
          newCall(),
        ),
      ),
    )
    scene.disk.delay(0)
    assert.deepEqual(
      answers.flat().filter((answer) => !('granted' in answer && answer.granted)),
      [],
    )
  })

  it('is said in the error, and not that a row is locked', async () => {
    await using scene = await openScene()
    scene.disk.delay(900)
    const answers = await Promise.allSettled(
      Array.from({ length: 8 }, () =>
        scene.driver.acquire([{ ...claimOn(unique('free')), metadata: { text: 'x'.repeat(3_500) } }], newCall()),
      ),
    )
    scene.disk.delay(0)
    const failed = answers.filter((answer) => answer.status === 'rejected').map(({ reason }) => String(reason))
    assert.ok(failed.length > 0, 'the disk was slow enough')
    for (const each of failed) assert.match(each, /waited too long for a file to grow. Is the disk slow or full\?/)
  })
})

async function openScene() {
  const disk = await slowDisk()
  const server = await startPostgres({ disk })
  const pool = new pg.Pool({ connectionString: server.url, max: 8 })
  const driver = postgresDriver({ client: pool })
  await driver.inspect({})
  // Random bytes would be needed to defeat compression. So it is off, and values are not moved to another table.
  await pool.query(`ALTER TABLE distributed_locks ALTER COLUMN metadata SET STORAGE PLAIN`)
  return {
    disk,
    driver,
    async [Symbol.asyncDispose]() {
      disk.delay(0)
      await driver.close()
      await pool.end()
      await server[Symbol.asyncDispose]()
      disk[Symbol.dispose]()
    },
  }
}
