import { describe, expect, inject, test } from 'vitest'
import { DistributedLock, type Lease } from '../../src/index.ts'
import { createStore, SLOW } from '../harness/cli.ts'

const { redis, postgres } = inject('servers')
const stores = (sqlite: string): [string, string][] => [
  ['sqlite', sqlite],
  ['redis', redis?.[0] ?? ''],
  ['postgres', postgres ?? ''],
]

describe.concurrent('holdfast break', SLOW, () => {
  test.each(['sqlite', 'redis', 'postgres'])(
    'on %s, ends the lease of a holder, which finds out with its next renewal',
    async (name) => {
      await using store = createStore()
      const url = new Map(stores(`sqlite:${store.path}`)).get(name) ?? ''
      const lockName = `break:${store.folder}`
      await using lock = new DistributedLock({ url, holderId: 'victim' })
      const lease = await lock.hold(lockName, { timeoutSeconds: 60 })
      const lost = lossOf(lease)
      const args = ['break', lockName, '--reason', 'the host is gone', '--by', 'anna', '--yes', '--url', url]
      const { code, stderr } = await store.run(args)
      expect(stderr).toMatch(/is held by\n {2}victim, for \d+s\nno claim waits for it\nholdfast: ended the lease on/)
      expect(code).toBe(0)
      await lost
      expect(lease.held).toBe(false)
      const { stdout } = await store.run(['show', lockName, '--url', url])
      expect(stdout).toMatch(/it is free\n\nbroken before\n {2}\d+s ago by anna: the host is gone \(held by victim\)\n/)
      expect((await store.run(['ls', '--url', url])).stdout).not.toContain(`broken:${lockName}`)
    },
  )

  test('says so if the lock is free', async () => {
    await using store = createStore()
    const run = await store.run(['break', 'job', '--reason', 'x', '--yes'])
    expect(run).toEqual({ code: 0, stdout: '', stderr: 'holdfast: "job" is free\n' })
  })

  test('does nothing without --yes where it cannot ask', async () => {
    await using store = createStore()
    await using lock = new DistributedLock({ url: `sqlite:${store.path}` })
    const lease = await lock.hold('job', { timeoutSeconds: 60 })
    const { code, stderr } = await store.run(['break', 'job', '--reason', 'x'])
    expect({ code, held: lease.held }).toEqual({ code: 64, held: true })
    expect(stderr).toContain('break needs --yes where it cannot ask')
    expect((await lock.inspect('job')).leases).toHaveLength(1)
  })

  test('says why a store cannot do it', async () => {
    await using store = createStore()
    const url = (postgres ?? '').replace('postgres:', 'postgres+advisory:')
    await using lock = new DistributedLock({ url })
    const lockName = `break:${store.folder}`
    const lease = await lock.hold(lockName)
    const { code, stderr } = await store.run(['break', lockName, '--reason', 'x', '--yes', '--url', url])
    expect({ code, held: lease.held }).toEqual({ code: 69, held: true })
    expect(stderr).toMatch(/the server gives a session lock to no other session before its own has ended/)
  })
})

const lossOf = ({ signal }: Lease): Promise<unknown> =>
  new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
