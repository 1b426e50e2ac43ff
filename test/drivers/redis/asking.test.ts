import { once } from 'node:events'
import type { Cluster, Redis } from 'ioredis'
import { expect, inject, it } from 'vitest'
import { openIoredis } from '../../../src/drivers/redis/open-ioredis.ts'
import { redisUrl } from '../../../src/drivers/redis/url.ts'

const [url = ''] = inject('servers').cluster ?? []

// ioredis sends ASKING before a command that is redirected while a slot is moved.
it('redis+cluster: a connection that ends behind an ASKING leaves no rejection unhandled', async () => {
  const { target } = redisUrl(url.replace(/^redis:/, 'redis+cluster:'))
  const opened = await openIoredis(target, {})
  const client = opened?.client as unknown as Cluster
  const [node] = client.nodes('master') as [Redis]
  await node.ping()
  const unhandled: unknown[] = []
  const hear = (error: unknown): unknown => unhandled.push(error)
  process.on('unhandledRejection', hear)
  const ended = once(node, 'end')
  void node.asking()
  node.stream.destroy() // before the answer
  await ended
  await new Promise((resolve) => setImmediate(resolve)) // an unhandled rejection is reported by then
  process.off('unhandledRejection', hear)
  await opened?.close()
  expect(unhandled).toEqual([])
})
