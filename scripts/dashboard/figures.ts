import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { gzipSync } from 'node:zlib'
import { connect } from 'holdfast'
import { createDashboard, toNodeHandler } from 'holdfast/dashboard'
import { startBrowser } from '../../test/harness/browser.ts'
import { startServers } from '../../test/harness/servers.ts'

const LOCKS = 10_000
const CHANGES_PER_SECOND = 1_000
/** With this time to live, that many leases are renewed in a second. */
const TTL_MS = 30_000
const MEASURED_MS = 20_000

/** Measures what 10,000 locks cost, of which 900 a second are renewed and 100 a second change hands. */
export async function main(_: readonly string[], root: string): Promise<number> {
  const servers = await startServers({ redis: 1 })
  const url = servers.redis[0]?.url ?? ''
  const driver = await connect(url)
  const claim = (number: number, round: number) => ({
    lockName: `job:${String(number).padStart(5, '0')}`,
    claimId: `figures.${round}-${number}`,
    holderId: `worker-${(number + round) % 50}`,
    mode: 'exclusive' as const,
    permits: 1,
    ttlMs: TTL_MS,
    waiterTtlMs: 0,
  })
  const held = new Map<number, { lockName: string; claimId: string; fencingToken: number }>()
  const take = async (numbers: readonly number[], round: number): Promise<void> => {
    const claims = numbers.map((number) => claim(number, round))
    const answers = await driver.acquire(claims, { secret: '' })
    answers.forEach((answer, at) => {
      if (answer instanceof Error || !answer.granted) throw new Error('a claim was refused')
      const { lockName, claimId } = claims[at] as (typeof claims)[number]
      held.set(numbers[at] as number, { lockName, claimId, fencingToken: answer.fencingToken })
    })
  }
  for (let at = 0; at < LOCKS; at += 1_000)
    await take(
      Array.from({ length: 1_000 }, (_each, index) => at + index),
      0,
    )

  let sent = 0
  let steps = 0
  const dashboard = createDashboard({ stores: [{ url }], authorize: 'none' })
  const server = createServer(toNodeHandler(dashboard)).listen(0, '127.0.0.1')
  server.on('connection', (socket) => {
    const before = socket.write.bind(socket) as (...args: unknown[]) => boolean
    socket.write = ((...args: unknown[]) => {
      const bytes = Buffer.from(args[0] as Uint8Array)
      sent += bytes.length
      if (bytes.includes('event: step')) steps += 1
      return before(...args)
    }) as typeof socket.write
  })
  await once(server, 'listening')

  let isOver = false
  let changes = 0
  const load = (async () => {
    const tenth = CHANGES_PER_SECOND / 10
    for (let next = 0, round = 1; !isOver; next = (next + tenth) % LOCKS, round += 1) {
      const startedAt = performance.now()
      const numbers = Array.from({ length: tenth }, (_each, index) => (next + index) % LOCKS)
      const [moved, renewed] = [numbers.slice(0, tenth / 10), numbers.slice(tenth / 10)]
      await driver.release(moved.flatMap((number) => held.get(number) ?? []))
      await take(moved, round)
      await driver.renew(
        renewed.flatMap((number) => ({ ...(held.get(number) as never as object), ttlMs: TTL_MS }) as never),
      )
      changes += tenth
      await sleep(Math.max(0, 100 - (performance.now() - startedAt)))
    }
  })()

  await using browser = await startBrowser()
  const { page } = await browser.page()
  const session = await page.context().newCDPSession(page)
  await session.send('Performance.enable')
  await page.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`)
  await page.getByText('10,000 locks').waitFor({ timeout: 60_000 })
  const loaded = sent
  await sleep(3_000) // The first state has been rendered.
  const metrics = async () => {
    const { metrics: list } = await session.send('Performance.getMetrics')
    return Object.fromEntries(list.map(({ name, value }) => [name, value]))
  }
  const [before, sentBefore, changesBefore, stepsBefore] = [await metrics(), sent, changes, steps]
  const startedAt = performance.now()
  await sleep(MEASURED_MS)
  const seconds = (performance.now() - startedAt) / 1_000
  const after = await metrics()
  const updates = steps - stepsBefore
  const busyMs = ((after['TaskDuration'] ?? 0) - (before['TaskDuration'] ?? 0)) * 1_000
  const { assets } = (await import(`${root}dist/dashboard/assets.js`)) as { assets: Record<string, string> }
  const bundle = Object.values(assets).reduce((sum, text) => sum + gzipSync(text, { level: 9 }).length, 0)
  console.log(`locks                                  ${LOCKS}`)
  console.log(`changes per second                     ${Math.round((changes - changesBefore) / seconds)}`)
  console.log(`updates per second                     ${(updates / seconds).toFixed(1)}`)
  console.log(`main thread, per update                ${(busyMs / updates).toFixed(1)} ms`)
  console.log(`main thread, of the time               ${(busyMs / seconds / 10).toFixed(1)} %`)
  console.log(`to the browser, per second             ${Math.round((sent - sentBefore) / seconds / 1_000)} kB`)
  console.log(`to the browser, first state            ${Math.round(loaded / 1_000)} kB`)
  console.log(`everything that is loaded, compressed  ${(bundle / 1_000).toFixed(1)} kB`)
  isOver = true
  await load
  server.closeAllConnections()
  server.close()
  await dashboard.close()
  await driver.close()
  return 0
}
