import { expect, test } from 'vitest'
import { createStore, SLOW } from '../harness/cli.ts'
import { startRedis } from '../harness/servers.ts'
import { askRedis } from '../harness/wire.ts'

test('a lock that another library took is shown without the times and the token that are unknown', SLOW, async () => {
  await using store = createStore()
  await using redis = await startRedis()
  const { url } = redis
  const name = 'foreign'
  const ask = (...command: (string | number)[]) => askRedis(redis, ...command)
  await ask('SET', `lock:${name}`, 'theirs')
  await ask('SET', `lock:${name}:ends`, 'theirs', 'PX', 600_000)
  const { stdout } = await store.run(['ls', name, '--wide', '--url', url])
  expect(stdout).toMatch(new RegExp(`^${name} +holds +exclusive +another client +unknown +no expiry +none$`, 'm'))
  expect(stdout).toMatch(
    new RegExp(`^${name}:ends +holds +exclusive +another client +unknown +20\\d\\d-\\S+Z +none$`, 'm'),
  )
  const lines = (await store.run(['ls', name, '--json', '--url', url])).stdout.trimEnd().split('\n')
  const json = lines.map((line) => JSON.parse(line) as { lockName: string }).find(({ lockName }) => lockName === name)
  expect(json).toMatchObject({ lockName: name, holderId: 'another client' })
  expect(json).not.toHaveProperty('acquiredAt')
  expect(json).not.toHaveProperty('expiresAt')
  const refused = await store.run(['run', name, '--no-wait', '--url', url, '--', 'true'])
  expect(refused).toMatchObject({ code: 75 })
  expect(refused.stderr).toBe(`holdfast: "${name}" is held by another client (since: unknown, no expiry)\n`)
})
