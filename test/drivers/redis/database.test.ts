import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer } from 'node:net'
import { afterAll, beforeAll, describe, inject, it } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { openIoredis } from '../../../src/drivers/redis/open-ioredis.ts'
import { openNodeRedis } from '../../../src/drivers/redis/open-node-redis.ts'
import { redisUrl } from '../../../src/drivers/redis/url.ts'
import { redisDriver } from '../../../src/drivers/redis.ts'
import { openRedlock } from '../../../src/drivers/redlock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { type Server, startRedis } from '../../harness/servers.ts'
import { askRedis } from '../../harness/wire.ts'

let server: Server
let counter = 0

beforeAll(async () => {
  server = await startRedis()
})

afterAll(async () => {
  await server[Symbol.asyncDispose]()
})

const openers = { ioredis: openIoredis, redis: openNodeRedis }

describe.each(['ioredis', 'redis'] as const)('redis: the database of a URL, through %s', (library) => {
  async function open(url: string): Promise<Driver> {
    const { target, prefix } = redisUrl(url)
    const opened = await openers[library](target, {})
    assert.ok(opened, `${library} is installed`)
    const driver = redisDriver({ client: opened.client, prefix, onWarning() {} })
    return {
      ...driver,
      async close() {
        await driver.close()
        await opened.close()
      },
    }
  }

  it('locks are in the database that the URL names', async () => {
    const driver = await open(`redis://127.0.0.1:${server.port}/3`)
    const held = claim()
    assert.deepEqual(await tried(driver, held), 'granted')
    assert.deepEqual(await databasesOf(held), ['3'])
    await driver.close()
  })

  it.each([
    ['a database that the user may not select', 3, /database 3 cannot be selected: NOPERM/],
    ['a database that the server does not have', 99, /database 99 cannot be selected: ERR DB index is out of range/],
  ])('in %s nothing is locked, and nothing in another one', async (_, database, message) => {
    const user = await addUser(database === 3 ? '-select' : '+select')
    const driver = await open(`redis://${user}:pw@127.0.0.1:${server.port}/${database}`)
    const claims = [claim(), claim(), claim()]
    const first = await Promise.all(claims.map((each) => tried(driver, each)))
    const again = await tried(driver, claims[0] as Claim)
    for (const answer of [...first, again]) assert.match(answer, message)
    for (const each of claims) assert.deepEqual(await databasesOf(each), [])
    await driver.close()
  })

  it('after a reconnect the driver uses the same database, or fails', async () => {
    const user = await addUser('+select')
    const driver = await open(`redis://${user}:pw@127.0.0.1:${server.port}/3`)
    assert.deepEqual(await tried(driver, claim()), 'granted')

    const before = await whileConnectionsEnd(driver, user)
    assert.equal(before.last, 'granted')
    await askRedis(server, 'ACL', 'SETUSER', user, '-select')
    const without = await whileConnectionsEnd(driver, user)
    assert.match(without.last, /database 3 cannot be selected: NOPERM/)

    await askRedis(server, 'ACL', 'SETUSER', user, '+select')
    const last = claim()
    const granted = async (): Promise<boolean> => (await tried(driver, last)) === 'granted'
    await until(granted, { timeoutMs: 10_000, failure: () => 'it never came back' })
    for (const { of, answer } of [...before.tries, ...without.tries]) {
      // A claim without an answer may have been granted. If so, in the right database.
      const allowed = (await answer) === 'granted' ? ['3'] : ['3', '']
      assert.ok(allowed.includes((await databasesOf(of)).join()), `${await answer}: ${await databasesOf(of)}`)
    }
    await driver.close()
  })

  it('an IPv6 address in brackets works, for one server and for a Cluster', async () => {
    const [node] = inject('servers').cluster ?? []
    for (const [scheme, port] of [
      ['redis', server.port],
      ['redis+cluster', Number(new URL(node ?? '').port)],
    ] as const) {
      await using way = await startIpv6(port)
      const driver = await open(`${scheme}://[::1]:${way.port}`)
      assert.equal(await tried(driver, claim()), 'granted', scheme)
      await driver.close()
    }
  })
})

describe('redlock: the database of a URL', () => {
  it('nodes whose database cannot be selected do not vote', async () => {
    const user = await addUser('-select')
    const driver = await openRedlock(`redlock://${user}:pw@127.0.0.1:${server.port}/3?persistent=true`)
    const held = claim()
    for (let tries = 0; tries < 3; tries += 1) assert.match(await tried(driver, held), /database 3 cannot be selected/)
    assert.deepEqual(await databasesOf(held), [])
    await driver.close()
  })

  it('the database is the same on every node', async () => {
    const driver = await openRedlock(`redlock://127.0.0.1:${server.port}/3?persistent=true`)
    const held = claim()
    assert.equal(await tried(driver, held), 'granted')
    assert.deepEqual(await databasesOf(held), ['3'])
    await driver.close()
  })
})

interface Tries {
  readonly tries: readonly { readonly of: Claim; readonly answer: Promise<string> }[]
  /** The answer to a claim afterwards. */
  readonly last: string
}

/** Claims one lock after the other, while all connections of this user are killed repeatedly. */
async function whileConnectionsEnd(driver: Driver, user: string): Promise<Tries> {
  const tries = []
  for (let round = 0; round < 3; round += 1) {
    await askRedis(server, 'CLIENT', 'KILL', 'USER', user)
    // Some claims are sent before the client knows it, some while it has no connection.
    for (let turn = 0; turn < 20; turn += 1) {
      const of = claim()
      tries.push({ of, answer: tried(driver, of) })
      await new Promise((resolve) => setTimeout(resolve, turn % 3))
    }
  }
  return { tries, last: await tried(driver, claim()) }
}

/** `granted`, or the error. */
async function tried(driver: Driver, of: Claim): Promise<string> {
  try {
    const [answer] = await driver.acquire([of], newCall())
    if (answer instanceof Error) return answer.message
    return answer?.granted ? 'granted' : 'refused'
  } catch (error) {
    return (error as Error).message
  }
}

/** The databases that have the key of the lock. One script looks into all of them. */
async function databasesOf({ lockName }: Claim): Promise<string[]> {
  const script = `local found = {}
    for database = 0, 15 do
      redis.call('SELECT', database)
      if redis.call('EXISTS', ARGV[1]) == 1 then found[#found + 1] = tostring(database) end
    end
    return found`
  return (await askRedis(server, 'EVAL', script, 0, `lock:${lockName}`)) as string[]
}

async function addUser(...rights: string[]): Promise<string> {
  const user = `user${++counter}`
  await askRedis(server, 'ACL', 'SETUSER', user, 'on', '>pw', '~*', '&*', '+@all', ...rights)
  return user
}

async function startIpv6(port: number): Promise<{ port: number } & AsyncDisposable> {
  const way = createServer((socket) => {
    const onward = connect(port, '127.0.0.1')
    socket.pipe(onward).pipe(socket)
    for (const each of [socket, onward]) each.on('error', () => each.destroy())
  })
  // Without IPv6 on the loopback interface this fails: sysctl net.ipv6.conf.lo.disable_ipv6=0
  way.listen(0, '::1')
  await once(way, 'listening')
  return {
    port: (way.address() as AddressInfo).port,
    async [Symbol.asyncDispose]() {
      way.close()
    },
  }
}

function claim(): Claim {
  const lockName = `database:${++counter}`
  const claimId = `claim ${counter} of ${process.pid}`
  return { lockName, claimId, holderId: 'h', mode: 'exclusive', permits: 1, ttlMs: 60_000, waiterTtlMs: 0 }
}
