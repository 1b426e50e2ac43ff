import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { cpSync, mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, inject, it } from 'vitest'
import { connect } from '../src/connect.ts'
import { DistributedLock } from '../src/index.ts'
import { makeFolder } from './harness/folders.ts'
import { startProxy } from './harness/proxy.ts'
import { startRedis } from './harness/servers.ts'

/**
 * A process ends by itself after its work, on every store and with every client, although it has closed nothing. It
 * does not end before the answer of a call.
 */

const root = join(import.meta.dirname, '..')
const folder = makeFolder('process-exit')
afterAll(() => folder.remove())

const { redis = [], cluster = [], postgres = '' } = inject('servers')
const hosts = (urls: readonly string[]): string => urls.map((url) => new URL(url).host).join(',')
const advisory = (url: string): string => url.replace(/^postgres(ql)?:/, 'postgres+advisory:')
const redlock = `redlock://${hosts(redis.slice(0, 3))}?persistent=1&prefix=process-exit:`

const stores: [name: string, client: string, url: string][] = [
  ['memory', 'libsql', `memory:${randomUUID()}`],
  ['sqlite', 'libsql', `sqlite:${join(folder.path, 'locks.db')}`],
  ...['ioredis', 'redis'].flatMap((client): typeof stores => [
    ['redis', client, redis[0] ?? ''],
    ['redis cluster', client, `redis+cluster://${hosts(cluster)}`],
    ['redlock', client, redlock],
  ]),
  ...['pg', 'postgres'].flatMap((client): typeof stores => [
    ['postgres', client, postgres],
    ['postgres-advisory', client, advisory(postgres)],
  ]),
]

/** A project with one client. */
function projectWith(client: string): string {
  const project = join(folder.path, client)
  const modules = join(project, 'node_modules')
  if (mkdirSync(modules, { recursive: true }) === undefined) return project
  for (const part of ['dist', 'package.json'])
    cpSync(join(root, part), join(modules, 'holdfast', part), { recursive: true })
  symlinkSync(join(root, 'node_modules', client), join(modules, client))
  return project
}

interface Program {
  /** Resolves when the program has printed this line. */
  printed(line: string): Promise<void>
  readonly hasEnded: boolean
  kill(signal: NodeJS.Signals): void
  /** Its output and its exit code. */
  readonly ended: Promise<{ output: string; code: number | null }>
}

/** Starts a program on the built package. Node's exit code is 13 if it ends while a promise is awaited. */
function start(client: string, program: string): Program {
  const source = `import { connect, DistributedLock } from 'holdfast'\n${program}`
  const child = spawn(process.execPath, ['--input-type=module', '--eval', source], {
    cwd: projectWith(client),
    env: { ...process.env, NODE_OPTIONS: '' },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: PATIENCE_MS,
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text))
  let hasEnded = false
  const ended = once(child, 'close').then(([code]) => {
    hasEnded = true
    return { output: output.trim(), code: code as number | null }
  })
  return {
    ended,
    get hasEnded() {
      return hasEnded
    },
    kill: (signal) => void child.kill(signal),
    async printed(line) {
      while (!output.split('\n').includes(line)) {
        if (hasEnded) throw new Error(`the program ended without "${line}": ${output}`)
        await Promise.race([once(child.stdout, 'data'), ended])
      }
    },
  }
}

/** Far more than a process needs, so that only one that does not end is too late. */
const PATIENCE_MS = 60_000

describe.concurrent.each(stores)('on %s with %s', (name, client, url) => {
  const lock = `const lock = new DistributedLock({ url: ${JSON.stringify(url)} })`
  const timeout = 2 * PATIENCE_MS

  it(
    'a process ends by itself after its last call, although it holds a lease that is renewed',
    async () => {
      const lockName = randomUUID()
      const { ended } = start(
        client,
        `${lock}
        await lock.withLock('${lockName}', async () => {
          // A waiter, which opens the connection for notifications.
          const { acquired } = await lock.acquire('${lockName}-2', { timeoutSeconds: 60 })
          const waiting = lock.acquire('${lockName}-2', { timeoutSeconds: 60, blockingTimeoutSeconds: 20 })
          await new Promise((resolve) => lock.on('waiting', resolve))
          await lock.release('${lockName}-2')
          console.log(acquired, (await waiting).acquired, await lock.release('${lockName}-2'))
        })
        await lock.hold('${randomUUID()}', { timeoutSeconds: 2 })
        console.log('done')`,
      )
      expect(await ended).toEqual({ output: 'true true true\ndone', code: 0 })
    },
    timeout,
  )

  it.skipIf(name === 'memory')(
    'a process does not end while its claim waits for another process',
    async () => {
      const lockName = randomUUID()
      await using holder = new DistributedLock({ url })
      const lease = await holder.hold(lockName)
      const program = start(
        client,
        `${lock}
        lock.on('waiting', () => console.log('waiting'))
        await (await lock.hold('${lockName}', { blockingTimeoutSeconds: 20 })).release()
        console.log('granted')`,
      )
      await program.printed('waiting')
      // Nothing happens in this time: a process that did not wait would end.
      await new Promise((resolve) => setTimeout(resolve, 500))
      expect(program.hasEnded).toBe(false)
      await lease.release()
      expect(await program.ended).toEqual({ output: 'waiting\ngranted', code: 0 })
    },
    timeout,
  )

  it(
    'a process that calls a driver directly does not end before its answer',
    async () => {
      const { ended } = start(
        client,
        `const driver = await connect(${JSON.stringify(url)})
        const times = { ttlMs: 30_000, waiterTtlMs: 0 }
        const lease = { lockName: '${randomUUID()}', claimId: 'a.1', holderId: 'a' }
        const claim = { ...lease, mode: 'exclusive', permits: 1, ...times }
        const [{ granted, fencingToken }] = await driver.acquire([claim], { secret: 'secret' })
        console.log(granted, await driver.release([{ ...claim, fencingToken }]))
        console.log((await driver.inspect({ lockName: 'unused' })).leases.length)`,
      )
      expect(await ended).toEqual({ output: 'true [ true ]\n0', code: 0 })
    },
    timeout,
  )
})

describe.concurrent.each([
  ['redis', 'ioredis', redis[0] ?? ''],
  ['redis', 'redis', redis[0] ?? ''],
  ['postgres', 'pg', postgres],
  ['postgres', 'postgres', postgres],
])('on %s with %s over a slow network', (_, client, url) => {
  it('a process waits for its first answer, and for the later ones', { timeout: 2 * PATIENCE_MS }, async () => {
    await using proxy = await startProxy(Number(new URL(url).port))
    const slow = Object.assign(new URL(url), { host: `127.0.0.1:${proxy.port}` }).href
    // Creates what the store needs.
    const driver = await connect(url)
    await driver.inspect({})
    await driver.close()
    proxy.delay(150)
    const program = start(
      client,
      `const lock = new DistributedLock({ url: '${slow}', callTimeoutSeconds: 20 })
      for (let turn = 0; turn < 2; turn += 1) await (await lock.hold('${randomUUID()}')).release()
      console.log('answered')`,
    )
    expect(await program.ended).toEqual({ output: 'answered', code: 0 })
  })
})

describe.concurrent.each([
  ...['ioredis', 'redis'].map((client) => ['redis', client, redis[0] ?? '']),
  ...['pg', 'postgres'].flatMap((client) => [
    ['postgres', client, postgres],
    ['postgres-advisory', client, advisory(postgres)],
  ]),
] as [name: string, client: string, url: string][])(
  'on %s with %s and a server that falls silent',
  (_, client, url) => {
    it('a process ends after it has closed its lock, although the function of `withLock` never ends', {
      timeout: 60_000,
    }, async () => {
      const { port } = new URL(url)
      await using proxy = await startProxy(Number(port))
      const program = start(
        client,
        `const lock = new DistributedLock({ url: '${url.replace(port, String(proxy.port))}', callTimeoutSeconds: 20 })
      const alive = setInterval(() => {}, 1_000)
      process.once('SIGTERM', async () => {
        clearInterval(alive)
        await lock.close({ deadlineSeconds: 0.2 })
        console.log('closed')
        // Runs only if something keeps the process alive.
        setTimeout(() => console.log('still there'), 4_000).unref()
      })
      lock.withLock('${randomUUID()}', async () => {
        console.log('begun')
        await new Promise(() => {})
      }).catch((error) => {
        console.log(error.message)
        clearInterval(alive)
      })`,
      )
      await program.printed('begun')
      proxy.hold('toServer')
      program.kill('SIGTERM')
      expect(await program.ended).toEqual({ output: 'begun\nclosed', code: 0 })
    })
  },
)

describe.concurrent.each(['ioredis', 'redis'])('on redis with %s and a server that goes away', (client) => {
  it('a process ends by itself, and one that continues finds the server when it is back', {
    timeout: 90_000,
  }, async () => {
    await using server = await startRedis()
    const lock = `const lock = new DistributedLock({ url: '${server.url}', callTimeoutSeconds: 20 })
      const alive = setInterval(() => {}, 1_000)
      await (await lock.hold('a', { blockingTimeoutSeconds: 20 })).release()
      console.log('held')`
    const left = start(client, `${lock}\n process.once('SIGTERM', () => clearInterval(alive))`)
    const stayed = start(
      client,
      `${lock}
      process.once('SIGUSR2', async () => {
        console.log((await lock.acquire('b').catch((error) => error)).code)
      })
      process.once('SIGTERM', async () => {
        clearInterval(alive)
        console.log((await lock.acquire('b')).acquired)
      })`,
    )
    await Promise.all([left.printed('held'), stayed.printed('held')])
    await server.stop()
    stayed.kill('SIGUSR2')
    await stayed.printed('STORE_UNAVAILABLE')
    left.kill('SIGTERM')
    expect(await left.ended).toEqual({ output: 'held', code: 0 })
    await server.restart()
    stayed.kill('SIGTERM')
    expect(await stayed.ended).toEqual({ output: 'held\nSTORE_UNAVAILABLE\ntrue', code: 0 })
  })
})
