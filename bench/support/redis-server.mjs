// @ts-check
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { Redis } from 'ioredis'

/** Starts redis-server without persistence on a free port, and resolves when it answers. */
export async function startRedisServer() {
  const port = await freePort()
  const child = await runRedisServer(port)
  return { url: `redis://127.0.0.1:${port}`, stop: () => child.kill() }
}

/** @param {number} port */
export async function runRedisServer(port) {
  const args = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no']
  const child = spawn('redis-server', args, { stdio: 'ignore' })
  const probe = new Redis(port, { retryStrategy: () => 20, maxRetriesPerRequest: null })
  probe.on('error', () => {})
  await probe.ping()
  probe.disconnect()
  return child
}

export async function freePort() {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = /** @type {import('node:net').AddressInfo} */ (server.address())
  server.close()
  await once(server, 'close')
  return port
}
