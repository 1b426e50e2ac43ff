import { randomUUID } from 'node:crypto'
import { expect, inject, test } from 'vitest'
import type { TestBrowser } from '../../harness/browser.ts'
import { ownRedisUrl, serveDashboard } from '../../harness/dashboard.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

/** Long enough for a process under load, short enough to wait for its end. */
const TTL_SECONDS = 2

const SOURCE = `
  import { DistributedLock } from 'holdfast'
  const lock = new DistributedLock({ url: process.env.STORY_URL, holderId: process.env.STORY_HOLDER })
  let lease
  expose({
    async hold(name, timeoutSeconds) {
      lease = await lock.hold(name, { timeoutSeconds, blockingTimeoutSeconds: 60, heartbeat: true })
    },
    async release() {
      await lease.release()
    },
  })`

export function storyTests(openPage: TestBrowser['page']): void {
  const stores: [name: string, url: () => string][] = [
    ['redis', ownRedisUrl],
    ['postgres', () => inject('servers').postgres ?? ''],
  ]
  test.concurrent.each(stores)(
    'the timeline tells the story on %s: killed, paused, released, force-released from the page',
    async (_, url) => {
      const name = `story:${randomUUID()}`
      const storeUrl = url()
      const start = (holder: string): Promise<Worker> =>
        startWorker({ source: SOURCE }, { env: { STORY_URL: storeUrl, STORY_HOLDER: holder }, callTimeoutMs: 60_000 })
      const workers = await Promise.all(['killed', 'paused', 'hanging'].map(start))
      const [killed, paused, hanging] = workers as [Worker, Worker, Worker]
      await using dashboard = await serveDashboard({
        stores: [{ url: storeUrl }],
        allowActions: true,
        authorize: () => ({ user: 'ada' }),
      })
      const { page, check } = await openPage()
      await page.goto(`${dashboard.url}#/lock/0/${encodeURIComponent(name)}`)
      await page.getByText('It is free.').waitFor()
      const isHeldBy = (holder: string) => page.locator('.holder-name').getByText(holder, { exact: true }).waitFor()
      const isWaiting = (holder: string) => page.locator('.queue').getByText(holder, { exact: true }).waitFor()

      await killed.call('hold', name, TTL_SECONDS)
      await isHeldBy('killed')
      const pausedHolds = paused.call('hold', name, TTL_SECONDS)
      await isWaiting('paused')
      const hangingHolds = hanging.call('hold', name, 60)
      await isWaiting('hanging')
      await killed.kill()
      await pausedHolds
      await isHeldBy('paused')
      await paused.pause()
      await hangingHolds
      await isHeldBy('hanging')
      paused.resume()

      await page.getByRole('button', { name: 'Force release…' }).click()
      await page.getByRole('dialog').getByText('hanging').waitFor()
      await page.getByLabel('Why').fill('it hangs')
      await page.getByRole('button', { name: 'Force release', exact: true }).click()
      await page.getByText('It is free.').waitFor()
      // The process that was paused has learned of its loss, and takes its turn again.
      await paused.call('hold', name, 60)
      await isHeldBy('paused')
      const again = hanging.call('hold', name, 60)
      await isWaiting('hanging')
      await paused.call('release')
      await again
      await isHeldBy('hanging')

      const rows = page.locator('table[aria-label=History] tbody tr')
      const told = await rows.evaluateAll((all) =>
        all.map((row) => [row.querySelector('td:nth-child(2)')?.textContent, row.getAttribute('data-end')]),
      )
      expect(told.reverse()).toEqual([
        ['killed', 'expired'],
        ['paused', 'expired'],
        ['hanging', 'force-released'],
        ['paused', 'passed'],
        ['hanging', 'held'],
      ])
      await page.getByText('force-released (ada: it hangs)').waitFor()
      await check()
      await Promise.all(workers.map((worker) => worker[Symbol.asyncDispose]()))
    },
  )
}
