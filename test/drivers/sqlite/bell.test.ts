import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, existsSync, linkSync, readFileSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { describe, it, vi } from 'vitest'
import type { DriverListener } from '../../../src/core/driver.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { claimOn, createContext, grantOf, isGranted, type SqliteContext } from '../../harness/sqlite-context.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

/** The bell is a file beside the database. Other users may be able to write to that folder. */
describe.concurrent('sqlite alone: the bell', () => {
  const traps: [string, (victim: string, bell: string) => void][] = [
    ['a symbolic link', (victim, bell) => symlinkSync(victim, bell)],
    ['a hard link', (victim, bell) => linkSync(victim, bell)],
  ]
  it.each(traps)('%s in its place is not followed, and waiters are still woken', async (_, trap) => {
    await using context = createContext()
    const victim = `${context.folder}/victim`
    writeFileSync(victim, 'precious')
    trap(victim, `${context.path}-bell`)
    await handOver(context)
    assert.equal(readFileSync(victim, 'utf8'), 'precious')
  })

  it('a dangling link creates no file', async () => {
    await using context = createContext()
    symlinkSync(`${context.folder}/nowhere`, `${context.path}-bell`)
    await handOver(context)
    assert.equal(existsSync(`${context.folder}/nowhere`), false)
  })

  it('a pipe in its place blocks no process', async () => {
    await using context = createContext()
    execFileSync('mkfifo', [`${context.path}-bell`])
    await handOver(context)
  })

  it('has the permissions of the database', async () => {
    await using context = createContext()
    await (await openSqlite(`sqlite:${context.path}`)).close()
    chmodSync(context.path, 0o660)
    await handOver(context)
    assert.equal(statSync(`${context.path}-bell`).mode & 0o777, 0o660)
  })

  it.skipIf(process.getuid?.() !== 0)(
    'made by root, it belongs to the owner of the database, who would otherwise have to poll',
    async () => {
      await using context = createContext()
      await (await openSqlite(`sqlite:${context.path}`)).close()
      chownSync(context.path, 65534, 65533)
      await handOver(context)
      const { uid, gid, mode } = statSync(`${context.path}-bell`)
      assert.deepEqual([uid, gid, mode & 0o777], [65534, 65533, 0o600])
    },
  )
})

/** One driver waits, and is woken by the release of another. */
async function handOver(context: SqliteContext): Promise<void> {
  const [holder, waiter] = [
    await context.opened(openSqlite(`sqlite:${context.path}`)),
    await context.opened(openSqlite(`sqlite:${context.path}`)),
  ]
  const [held, waiting] = [claimOn('name'), claimOn('name', { waiterTtlMs: 60_000 })]
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
