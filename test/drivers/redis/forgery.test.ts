import assert from 'node:assert/strict'
import type { Redis } from 'ioredis'
import { beforeAll, describe, it } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { lockKeys } from '../../../src/drivers/redis/keys.ts'
import { WebLocks } from '../../../src/primitives/web-locks/web-locks.ts'
import { acquireOne, newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { gate } from '../../harness/gate.ts'
import { until } from '../../harness/processes.ts'
import { claim, client, driverOn, granted, lockOn, name, patience, shared } from '../../harness/redis-server.ts'

/**
 * Rule 15, failure 38: a user may publish and subscribe on every channel of the server, but may use no key. It receives
 * all messages, and it can publish any message.
 */

let admin: Redis

beforeAll(async () => {
  admin = client(shared.port)
  await admin.call('ACL', 'SETUSER', 'eve', 'on', 'nopass', 'allchannels', '+subscribe', '+psubscribe', '+publish')
})

describe('redis: a user of publish/subscribe without keys', () => {
  it('rule 15: cannot make a waiter believe that it holds the lock', async () => {
    const eve = await spy()
    await assert.rejects(eve.client.get('lock:x'), /NOPERM/)
    const [a, b] = [lockOn(shared.port), lockOn(shared.port, { waiterTtlSeconds: 60 })]
    const [first, lockName] = [name(), name()]
    // From this hand-off it learns the format of messages, and an id of this instance.
    const held = await a.hold(first, { timeoutSeconds: 60 })
    const handed = b.hold(first, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    await untilListening(first)
    await held.release()
    await (await handed).release()
    const isGrant = ({ text }: Message): boolean => text.startsWith('[') && text.split(',').length > 1
    await until(() => eve.heard.some(isGrant), patience('the message of a grant'))
    const genuine = eve.heard.find(isGrant) as Message

    const kept = await a.hold(lockName, { timeoutSeconds: 60 })
    let believed = false
    const waiting = b.hold(lockName, { timeoutSeconds: 60, blockingTimeoutSeconds: 15 })
    waiting.then(
      () => {
        believed = true
      },
      () => {},
    )
    await untilListening(lockName)
    // The waiter gets the hint that its turn comes sooner.
    eve.heard.length = 0
    await kept.extend(30)
    await until(() => eve.heard.some(({ channel }) => channel === genuine.channel), patience('the hint'))

    const [seenId] = JSON.parse(genuine.text) as [string]
    const guesses = [seenId, nextId(seenId, 1), nextId(seenId, 2), ...idsIn(eve.heard)]
    for (const id of guesses) for (const text of forgeries(id, genuine.text)) await eve.publish(genuine.channel, text)
    // The waiter asks again after this last message. By then it has received all of them.
    const [member, endMs] = await placeOf(lockName)
    await eve.publish(genuine.channel, `[${member.slice(1)}]`)
    const asksAgain = async (): Promise<boolean> => believed || (await placeOf(lockName))[1] > endMs
    await until(asksAgain, patience('the waiter to ask again'))
    assert.equal(believed, false, 'it believed a forged grant')
    assert.equal((await driverOn(shared.port).inspect({ lockName })).leases[0]?.fencingToken, kept.fencingToken)
    await kept.release()
    assert.ok((await waiting).fencingToken < Number.MAX_SAFE_INTEGER)
    await Promise.all([a.close(), b.close()])
  })

  it('rule 15: cannot replay the grant of a claim that waits again', async () => {
    const eve = await spy()
    const [a, b] = [driverOn(shared.port), driverOn(shared.port)]
    const { proofs, wakes } = await listenOn(b)
    const [first, again] = [newCall(), newCall()]
    const held = claim()
    const waits = claim({ lockName: held.lockName, waiterTtlMs: 60_000 })
    await granted(a, held)
    assert.equal((await acquireOne(b, waits, first)).granted, false)
    await a.release([held])
    await until(() => proofs.length === 1, patience('the grant'))
    assert.equal(proofs[0]?.(first.secret), true)
    await until(() => eve.heard.some(({ text }) => text.includes(waits.claimId)), patience('the message'))
    const genuine = eve.heard.find(({ text }) => text.includes(waits.claimId)) as Message
    // The lease is force-released before the waiter uses it, and the claim waits again.
    await granted(a, claim({ lockName: held.lockName, forceUpTo: Number.MAX_SAFE_INTEGER }))
    assert.equal((await acquireOne(b, waits, again)).granted, false)
    for (const text of forgeries(waits.claimId, genuine.text)) {
      await eve.publish(genuine.channel, text)
      await eve.publish('holdfast:forced', text)
    }
    await eve.publish(genuine.channel, JSON.stringify([waits.claimId]))
    await until(() => wakes.includes(waits.claimId), patience('the last message'))
    assert.ok(proofs.length > 1, 'the replayed message was not received')
    assert.deepEqual(
      proofs.filter((isProvedBy) => isProvedBy(again.secret)),
      [],
    )
    await Promise.all([a.close(), b.close()])
  })

  it('rule 15: cannot make a holder believe that its lock was force-released', async () => {
    const eve = await spy()
    const [a, b] = [lockOn(shared.port), new WebLocks({ driver: driverOn(shared.port), prefix: '' })]
    const lockName = name()
    const held = await a.hold(lockName, { timeoutSeconds: 60 })
    const [taken, ended] = [gate(), gate()]
    let signal: AbortSignal | undefined
    let renewals = 0
    b.on('renewed', () => {
      renewals += 1
    })
    const request = b.locks.request(lockName, async (lock) => {
      signal = lock?.signal
      taken.open()
      await ended.opened
      return 'done'
    })
    await untilListening(lockName)
    await held.release()
    await taken.opened
    await until(() => idsIn(eve.heard).length > 0, patience('the message of the grant'))
    for (const id of idsIn(eve.heard)) {
      for (const channel of ['holdfast:forced', ...eve.heard.map((each) => each.channel)]) {
        await eve.publish(channel, JSON.stringify({ lost: [id], by: 'eve' }))
      }
    }
    await until(() => renewals > 0 || signal?.aborted === true, patience('the holder to ask the store'))
    assert.equal(signal?.aborted, false, 'it believed a forged report')
    ended.open()
    assert.equal(await request, 'done')
    await Promise.all([a.close(), b.close()])
  })
})

interface Message {
  readonly channel: string
  readonly text: string
}

/** Receives all messages. */
async function spy() {
  const [listening, talking] = [client(shared.port), client(shared.port)]
  const heard: Message[] = []
  for (const each of [listening, talking]) await each.call('AUTH', 'eve', 'any')
  listening.on('pmessage', (_, channel: string, text: string) => heard.push({ channel, text }))
  await listening.psubscribe('*')
  return { heard, client: talking, publish: (channel: string, text: string) => talking.publish(channel, text) }
}

/** Forged grants for a claim: the genuine message, and variants with larger values. */
function forgeries(claimId: string, genuine: string): string[] {
  const nowMs = Date.now() + 1_000
  const [, token = 0, , ttlMs = 0, ...rest] = JSON.parse(genuine) as [string, number, number, number, ...unknown[]]
  const tokens = [Number.MAX_SAFE_INTEGER, token + 1, nowMs * 1_000]
  const made = tokens.flatMap((each) => [
    JSON.stringify([claimId, each, nowMs, ttlMs, ...rest]),
    JSON.stringify([claimId, each, nowMs, 3_600_000]),
    JSON.stringify([claimId, each, nowMs, ttlMs, 'da39a3ee5e6b4b0d3255bfef95601890afd80709']),
    JSON.stringify([claimId, each, nowMs, ttlMs, null]),
  ])
  return [genuine, ...made]
}

/** All texts in the messages that could be ids. */
const idsIn = (messages: readonly Message[]): string[] =>
  messages.flatMap(({ text }) => [...text.matchAll(/"([^"]+)"/g)].map(([, id]) => id as string))

/** The id of a later claim, because ids contain a counter. */
const nextId = (id: string, by: number): string =>
  id.replace(/\.([0-9a-z]+)/, (_, count: string) => `.${(Number.parseInt(count, 36) + by).toString(36)}`)

async function listenOn(driver: Driver) {
  const proofs: ((secret: string) => boolean)[] = []
  const wakes: string[] = []
  await driver.listen?.({
    wake: (target) => void wakes.push('claimId' in target ? target.claimId : ''),
    granted: (_claimId, _grant, isProvedBy) => void proofs.push(isProvedBy ?? (() => true)),
    lost() {},
    disconnected() {},
  })
  return { proofs, wakes }
}

/** The stored data of the first waiter. */
async function placeOf(lockName: string): Promise<[member: string, endMs: number, hears: unknown]> {
  const all = await admin.hgetall(lockKeys('lock:', lockName).data)
  const [member, text] = Object.entries(all).find(([field]) => field.startsWith('w')) ?? ['', '[]']
  const place = JSON.parse(text) as number[]
  return [member, place[0] ?? 0, place[6] ?? 0]
}

const untilListening = (lockName: string): Promise<void> =>
  until(async () => typeof (await placeOf(lockName))[2] === 'string', patience('the waiter to listen'))
