import { describe, expect, inject, test } from 'vitest'
import { DistributedLock } from '../../src/index.ts'
import { createStore, SLOW } from '../harness/cli.ts'
import { until } from '../harness/processes.ts'

const { postgres = '' } = inject('servers')

describe.concurrent('holdfast force-release', SLOW, () => {
  test('says so if the lock is free', async () => {
    await using store = createStore()
    const run = await store.run(['force-release', 'job', '--reason', 'x', '--yes'])
    expect(run).toEqual({ code: 0, stdout: '', stderr: 'holdfast: "job" is free\n' })
  })

  test('does nothing without --yes where it cannot ask', async () => {
    await using store = createStore()
    await using lock = new DistributedLock({ url: `sqlite:${store.path}` })
    const lease = await lock.hold('job', { timeoutSeconds: 60 })
    const { code, stderr } = await store.run(['force-release', 'job', '--reason', 'x'])
    expect({ code, held: lease.held }).toEqual({ code: 64, held: true })
    expect(stderr).toContain('force-release needs --yes where it cannot ask')
    expect((await lock.inspect('job')).leases).toHaveLength(1)
  })

  test('ends the session of a holder that does not let go only if asked to, and shows what ends with it', async () => {
    await using store = createStore()
    const url = postgres.replace('postgres:', 'postgres+advisory:')
    await using lock = new DistributedLock({ url, holderId: 'victim', defaults: { heartbeat: false } })
    const [lockName, otherName] = [`hanging:${store.folder}`, `other:${store.folder}`]
    const leases = [await lock.hold(lockName), await lock.hold(otherName)]
    const args = ['force-release', lockName, '--reason', 'it hangs', '--yes', '--url', url]
    const asked = await store.run(args)
    expect({ code: asked.code, held: leases.map(({ held }) => held) }).toEqual({ code: 69, held: [true, true] })
    expect(asked.stderr).toMatch(/it did not let go within 7 s: it hangs, or has no heartbeat.*use --end-session/)
    const ended = await store.run([...args, '--end-session'])
    expect(ended.stderr).toContain(` ends, and with it\n  ${otherName}, held by victim\n`)
    expect(ended.code).toBe(0)
    await until(() => leases.every(({ held }) => !held), { timeoutMs: 30_000, failure: () => 'a lease is still held' })
  })

  test('refuses to end sessions of a store that has none', async () => {
    await using store = createStore()
    const { code, stderr } = await store.run(['force-release', 'job', '--reason', 'x', '--yes', '--end-session'])
    expect(code).toBe(64)
    expect(stderr).toContain('--end-session is for postgres+advisory, where a lease ends with its session')
  })
})
