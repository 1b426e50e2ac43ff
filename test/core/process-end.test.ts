import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { describe, expect, it } from 'vitest'

/**
 * Runs a separate program with the built package. Rejects if the program ends while it awaits something: Node's exit
 * code is 13 then.
 */
async function run(program: string): Promise<string> {
  const source = `
    import { DistributedLock } from 'holdfast'
    import { memoryDriver } from 'holdfast/drivers/memory'
    const inner = memoryDriver()
    ${program}`
  const options = { cwd: REPOSITORY, env: { ...process.env, NODE_OPTIONS: '' }, timeout: 30_000 }
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', source], options)
  return stdout.trim()
}

const REPOSITORY = fileURLToPath(new URL('../..', import.meta.url))

describe.concurrent('the end of a process', () => {
  it('comes when every call has been answered, even if nothing was closed, and no timer delays it', async () => {
    // Every timer that might be left is longer than the timeout of the program.
    const program = `
      const lock = new DistributedLock({ driver: inner, callTimeoutSeconds: 300, waiterTtlSeconds: 900 })
      const first = await lock.hold('name', { timeoutSeconds: 900 })
      const second = lock.hold('name', { timeoutSeconds: 900, blockingTimeoutSeconds: 600 })
      await first.release()
      await (await second).release()
      await lock.hold('kept', { timeoutSeconds: 900 })
      console.log('done')`
    expect(await run(program)).toBe('done')
  }, 40_000)

  it('waits for the answer to a call, the first one and later ones', async () => {
    const program = `
      // Only the call itself keeps the process alive. The connection to the store does not.
      const slowly = (call) => async (list) => {
        await new Promise((resolve) => setTimeout(resolve, 200).unref())
        return call(list)
      }
      const driver = { ...inner, acquire: slowly(inner.acquire), release: slowly(inner.release) }
      const lock = new DistributedLock({ driver, callTimeoutSeconds: 20 })
      for (let turn = 0; turn < 2; turn += 1) await (await lock.hold('name', { blocking: true })).release()
      console.log('answered')`
    expect(await run(program)).toBe('answered')
  }, 40_000)

  it('waits for a waiting claim, also for one that is made after others have ended', async () => {
    const program = `
      const lock = new DistributedLock({ driver: inner })
      await lock.hold('name', { timeoutSeconds: 0.2, heartbeat: false })
      await (await lock.hold('name', { blocking: true })).release()
      await lock.hold('name', { timeoutSeconds: 0.2, heartbeat: false })
      await lock.hold('name', { blocking: true })
      console.log('granted')`
    expect(await run(program)).toBe('granted')
  }, 40_000)

  it('is not kept off by a heartbeat thread that hangs', async () => {
    const program = `
      // The memory of the process, and a thread whose first renewal blocks it.
      const module = new URL('test/core/interplay/blocked-thread-driver.mjs', 'file://' + process.cwd() + '/').href
      const driver = { ...inner, extensions: { reopen: { module, name: 'openBlocked', args: [] } } }
      const lock = new DistributedLock({ driver, heartbeatThread: true, callTimeoutSeconds: 300 })
      const lease = await lock.hold('name', { timeoutSeconds: 0.6 })
      await new Promise((resolve) => setTimeout(resolve, 300))
      console.log(await lease.release())`
    expect(await run(program)).toBe('true')
  }, 40_000)
})
