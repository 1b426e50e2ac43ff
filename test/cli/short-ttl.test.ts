import { fileURLToPath } from 'node:url'
import { describe, expect, inject, test } from 'vitest'
import { createStore, SLOW } from '../harness/cli.ts'
import { startProxy } from '../harness/proxy.ts'

const redis = new URL(inject('servers').redis?.[0] ?? '')
const HUNG_THREAD = `--import ${fileURLToPath(new URL('fixtures/hung-thread.mjs', import.meta.url))}`

const sleep = (seconds: number) => ['sh', '-c', `sleep ${seconds}; echo over`]

describe('a command outlives many times the TTL of its lease', SLOW, () => {
  test('with a heartbeat thread that hangs, and a round trip of 100 ms', async () => {
    await using store = createStore()
    await using proxy = await startProxy(Number(redis.port), redis.hostname)
    proxy.delay(50)
    const url = `redis://127.0.0.1:${proxy.port}`
    const run = await store.run(['run', 'job:hung', '--url', url, '--ttl', '2', '--', ...sleep(4)], {
      NODE_OPTIONS: HUNG_THREAD,
    })
    expect(run).toMatchObject({ code: 0, stdout: 'over\n' })
  })

  test('or the run warns that renewals may take longer than a sixth of the TTL', async () => {
    await using store = createStore()
    await using proxy = await startProxy(Number(redis.port), redis.hostname)
    proxy.delay(50)
    const url = `redis://127.0.0.1:${proxy.port}`
    const { stderr } = await store.run(['run', 'job:slow', '--url', url, '--ttl', '0.5', '--', ...sleep(1)])
    expect(stderr).toMatch(/took \d+ ms to answer.* a sixth of --ttl, which is 83 ms/)
  })

  test('with the shortest TTL', async () => {
    await using store = createStore()
    const codes: unknown[] = []
    for (let run = 0; run < 4; run += 1) {
      const args = ['run', `job:short:${run}`, '--url', redis.href, '--ttl', '0.5', '--', ...sleep(1.2)]
      codes.push((await store.run(args)).code)
    }
    // A pause of a busy machine can be as long as such a lease.
    expect(codes, `${codes}`).toContain(0)
  })
})
