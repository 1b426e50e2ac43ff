import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, existsSync, linkSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { describe, it, vi } from 'vitest'
import type { DriverListener } from '../../../src/core/driver.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { claimOn, createScene, grantOf, isGranted, type SqliteScene } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

/** The bell is a file beside the database. Others may be able to write in that folder. */
describe.concurrent('sqlite alone: the bell', () => {
  const traps: [string, (victim: string, bell: string) => void][] = [
    ['a symbolic link', (victim, bell) => symlinkSync(victim, bell)],
    ['a hard link', (victim, bell) => linkSync(victim, bell)],
  ]
  it.each(traps)('%s in its place is not followed, and waiters are woken all the same', async (_, trap) => {
    await using scene = createScene()
    const victim = `${scene.folder}/victim`
    writeFileSync(victim, 'precious')
    trap(victim, `${scene.path}-bell`)
    await handOver(scene)
    assert.equal(readFileSync(victim, 'utf8'), 'precious')
  })

  it('a link to nowhere makes no file there', async () => {
    await using scene = createScene()
    symlinkSync(`${scene.folder}/nowhere`, `${scene.path}-bell`)
    await handOver(scene)
    assert.equal(existsSync(`${scene.folder}/nowhere`), false)
  })

  it('a pipe in its place blocks nobody', async () => {
    await using scene = createScene()
    execFileSync('mkfifo', [`${scene.path}-bell`])
    await handOver(scene)
  })

  it('has the permissions of the database', async () => {
    await using scene = createScene()
    await (await openSqlite(`sqlite:${scene.path}`)).close()
    chmodSync(scene.path, 0o660)
    await handOver(scene)
    assert.equal(statSync(`${scene.path}-bell`).mode & 0o777, 0o660)
  })

  it.skipIf(process.getuid?.() !== 0)(
    'made by root, it is the database owner’s, who would have to poll otherwise',
    async () => {
      await using scene = createScene()
      await (await openSqlite(`sqlite:${scene.path}`)).close()
      chownSync(scene.path, 65534, 65533)
      await handOver(scene)
      const { uid, gid, mode } = statSync(`${scene.path}-bell`)
      assert.deepEqual([uid, gid, mode & 0o777], [65534, 65533, 0o600])
    },
  )
})

/** One driver waits, and is woken by another one's release. */
async function handOver(scene: SqliteScene): Promise<void> {
  const [holder, waiter] = [
    await scene.opened(openSqlite(`sqlite:${scene.path}`)),
    await scene.opened(openSqlite(`sqlite:${scene.path}`)),
  ]
  const [held, waiting] = [claimOn('name'), claimOn('name', { waitMs: 60_000 })]
  const { fencingToken } = await grantOf(holder, held)
  assert.equal(await isGranted(waiter, waiting), false)
  const woken = new Promise<void>((resolve) => {
    const listener: DriverListener = { wake: () => resolve(), granted() {}, lost() {}, disconnected() {} }
    void waiter.listen?.(listener)
  })
  await holder.release([{ ...held, fencingToken }])
  await woken
  assert.equal(await isGranted(waiter, waiting), true)
}
