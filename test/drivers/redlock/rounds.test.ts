import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import { beforeEach, describe, it } from 'vitest'
import type { AcquireAnswer, Driver } from '../../../src/core/driver.ts'
import type { RedlockNode } from '../../../src/drivers/redis/driver.ts'
import { slotCounter, slotOf } from '../../../src/drivers/redis/keys.ts'
import { proposalsOf } from '../../../src/drivers/redis/proposals.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import type { FaultProxy } from '../../harness/proxy.ts'
import {
  all,
  claim,
  client,
  clockAhead,
  granted,
  name,
  nodesOn,
  proxies,
  redlock,
  tokensOn,
  untilFree,
  untilTokens,
  untilVoting,
} from '../../harness/redlock-nodes.ts'
import type { Server } from '../../harness/servers.ts'

/** Messages of one round of a claim that arrive during another round, or after all of them. */
describe('redlock: rounds of one claim', () => {
  const servers = (): Server[] => all.slice(0, 3)
  const three = (): FaultProxy[] => proxies.slice(0, 3)
  const holdReplies = (): void => {
    for (const proxy of three()) proxy.hold('toClient')
  }
  const letGoOfReplies = (): void => {
    for (const proxy of three()) proxy.release('toClient')
  }
  const onThree = (options = {}): Driver =>
    redlock({ nodes: nodesOn(three()), persistent: false, longestTtlSeconds: 5, nodeTimeoutSeconds: 5, ...options })

  beforeEach(() => untilVoting(onThree(), servers()))

  it('a release that is sent twice does not end the lease of the claim’s next round', async () => {
    const driver = onThree({ nodeTimeoutSeconds: 1 })
    await forgetRelease(driver, servers())
    const held = claim({ ttlMs: 5_000 })
    holdReplies()
    const [failed] = await driver.acquire([held], newCall())
    assert.ok(failed instanceof Error, 'all replies are held back')
    const again = driver.acquire([held], newCall())
    await sleep(50) // for the second round to reach the nodes
    letGoOfReplies()
    const { fencingToken } = grantIn(await again)
    await sleep(100) // for messages that are still in flight
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
    const [rival] = await onThree().acquire([claim({ lockName: held.lockName, ttlMs: 1_000 })], newCall())
    assert.ok(rival && 'granted' in rival && !rival.granted, 'two holders')
  })

  it('a withdrawal that is sent twice does not end the lease when the claim asks again', async () => {
    const driver = onThree()
    const held = claim({ ttlMs: 5_000 })
    const first = await granted(driver, held)
    await forgetRelease(driver, servers())
    holdReplies()
    const withdrawn = driver.release([{ lockName: held.lockName, claimId: held.claimId }])
    const again = driver.acquire([held], newCall())
    await sleep(50) // for both to reach the nodes
    letGoOfReplies()
    const { fencingToken } = grantIn(await again)
    assert.ok(fencingToken > first.fencingToken)
    await withdrawn
    await sleep(100) // for messages that are still in flight
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
  })

  it('a withdrawal ends the vote in flight and leaves nothing behind', async () => {
    const driver = onThree()
    const held = claim({ ttlMs: 5_000 })
    holdReplies()
    const asked = driver.acquire([held], newCall())
    await sleep(50) // for the proposals to be in flight
    const withdrawn = driver.release([{ lockName: held.lockName, claimId: held.claimId }])
    letGoOfReplies()
    const [answer] = await asked
    assert.ok(answer instanceof Error, `counted what was released: ${JSON.stringify(answer)}`)
    assert.match(answer.message, /was withdrawn, or asked for again, during the vote/)
    await withdrawn
    await untilFree(held.lockName, 3_000)
  })

  it('if a claim asks again while a call is in flight, only the newer call is granted', async () => {
    const driver = onThree()
    const held = claim({ ttlMs: 5_000 })
    holdReplies()
    const first = driver.acquire([held], newCall())
    await sleep(20) // so that it is in flight before the second
    const second = driver.acquire([held], newCall())
    await sleep(50) // for both to reach the nodes
    letGoOfReplies()
    const [older] = await first
    assert.ok(older instanceof Error, 'both calls were granted')
    const { fencingToken } = grantIn(await second)
    await sleep(100) // for messages that are still in flight
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
  })

  it('a late proposal of an earlier round gets nothing, before and after the release', async () => {
    const driver = onThree()
    const held = claim({ ttlMs: 5_000 })
    const { fencingToken } = await granted(driver, held)
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    const [node] = nodesOn(servers()) as unknown as [RedlockNode]
    const proposed = { lockName: held.lockName, claim: held, token: fencingToken - 1 }
    const late = proposalsOf([proposed], { maxAheadUs: 1_000_000, longestTtlMs: 5_000 })
    const [refused] = await node.propose(late)
    assert.ok(refused && 'tokenRefused' in refused, JSON.stringify(refused))
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await untilFree(held.lockName, 3_000)
    const [again] = await node.propose(late)
    assert.ok(again && 'tokenRefused' in again, JSON.stringify(again))
    assert.deepEqual(await tokensOn(servers(), held), [undefined, undefined, undefined])
  })

  it('releasing a late vote of the first round does not end the lease of the second', async () => {
    const [lockName, two] = [name(), servers().slice(0, 2)]
    // Two of three nodes have a mark above the first proposal. The third one grants it.
    await granted(redlock({ nodes: nodesOn(two) }), claim({ lockName, ttlMs: 50 }))
    await sleep(60) // for that lease to end
    const driver = redlock({ nodes: nodesOn(three()), clock: clockAhead(-60_000) })
    const held = claim({ lockName })
    const [, , slow] = three() as [FaultProxy, FaultProxy, FaultProxy]
    slow.hold('toClient')
    const { fencingToken } = await granted(driver, held)
    slow.release('toClient')
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    await sleep(100) // for the release of the first round
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await untilFree(lockName, 3_000)
  })

  it('a lease left by an earlier attempt is replaced by the next one, and ends with it', async () => {
    const driver = onThree({ nodeTimeoutSeconds: 1 })
    const held = claim({ ttlMs: 5_000 })
    const [, , slow] = nodesOn(servers()) as readonly Driver[] as [Driver, Driver, Driver]
    // Left behind by an earlier attempt whose release never arrived. It is replaced when the node answers.
    await granted(slow, held)
    const { fencingToken } = await granted(driver, held)
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await untilFree(held.lockName, 3_000)
  })

  it('a lease left on a node that refuses the next token is released', async () => {
    const driver = redlock({ nodes: nodesOn(three()) })
    const held = claim()
    const counter = slotCounter(slotOf(`lock:${held.lockName}`))
    const probes = servers().map(({ port }) => client(port))
    // Two marks are further ahead than the third node allows, so that node only grants the first round.
    const mark = (Date.now() + 7_200_000) * 1_000
    for (const probe of probes.slice(0, 2)) await probe.set(counter, mark)
    for (const proxy of three().slice(0, 2)) proxy.hold('toClient')
    const granting = granted(driver, held)
    await until(async () => (await tokensOn(servers(), held))[2] !== undefined, {
      timeoutMs: 30_000,
      failure: () => 'the third node never took the first token',
    })
    await sleep(50) // for its answer, so that it is not a late one
    letGoOfReplies()
    const { fencingToken } = await granting
    assert.ok(fencingToken > mark)
    await untilTokens(servers(), held, [fencingToken, fencingToken, undefined])
    for (const probe of probes) await probe.del(counter)
  })

  it('a node that votes after the release keeps no lease', async () => {
    const [slow, late] = [servers()[2] as Server, three()[2] as FaultProxy]
    const driver = onThree({ nodeTimeoutSeconds: 1 })
    // The node knows the script of a release, but not that of a proposal.
    await client(slow.port).script('FLUSH')
    await nodesOn([slow])[0]?.release([claim()])
    late.hold('toClient')
    const held = claim({ ttlMs: 5_000 })
    const { fencingToken } = await granted(driver, held)
    assert.deepEqual(await driver.release([{ ...held, fencingToken }]), [true])
    await sleep(50) // for the release to overtake the proposal
    late.release('toClient')
    await sleep(100) // for the proposal to be sent again, with the script
    await untilFree(held.lockName, 3_000)
  })

  it('asking again for a held lock returns the same token, and leaves nothing on other nodes', async () => {
    const driver = onThree()
    const held = claim({ ttlMs: 5_000 })
    const { fencingToken } = await granted(driver, held)
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    const [one, two, missed] = three() as [FaultProxy, FaultProxy, FaultProxy]
    assert.deepEqual(await nodesOn([missed])[0]?.release([{ ...held, fencingToken }]), [true])
    // That node answers first.
    one.hold('toClient')
    two.hold('toClient')
    const again = driver.acquire([held], newCall())
    await sleep(50) // for its answer
    one.release('toClient')
    two.release('toClient')
    assert.equal(grantIn(await again).fencingToken, fencingToken)
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, undefined])
  })

  it('asking again for a held lock ends nothing if no quorum answers', async () => {
    const driver = onThree({ nodeTimeoutSeconds: 0.5 })
    const held = claim({ ttlMs: 5_000 })
    const { fencingToken } = await granted(driver, held)
    await untilTokens(servers(), held, [fencingToken, fencingToken, fencingToken])
    holdReplies()
    const [unknown] = await driver.acquire([held], newCall())
    assert.ok(unknown instanceof Error)
    letGoOfReplies()
    await sleep(50) // for messages that are still in flight
    assert.deepEqual(await tokensOn(servers(), held), [fencingToken, fencingToken, fencingToken])
    assert.equal((await granted(driver, held)).fencingToken, fencingToken)
  })
})

/** From now on these nodes know the script of a proposal, but not that of a release, which has to be sent twice. */
async function forgetRelease(driver: Driver, servers: readonly Server[]): Promise<void> {
  await Promise.all(servers.map(({ port }) => client(port).script('FLUSH')))
  const probe = claim({ ttlMs: 5_000 })
  const { fencingToken } = await granted(driver, probe)
  await untilTokens(servers, probe, [fencingToken, fencingToken, fencingToken])
}

function grantIn([answer]: readonly (AcquireAnswer | Error)[]) {
  if (answer === undefined || answer instanceof Error) throw answer
  assert.ok(answer.granted, JSON.stringify(answer))
  return answer
}
