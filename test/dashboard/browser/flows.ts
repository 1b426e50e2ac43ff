import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Page } from 'playwright-core'
import { expect, test } from 'vitest'
import { connect } from '../../../src/connect.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock, LeaderElection, RateLimiter, Semaphore } from '../../../src/index.ts'
import type { TestBrowser } from '../../harness/browser.ts'
import { createStore } from '../../harness/cli.ts'
import { ownRedisUrl, serveDashboard } from '../../harness/dashboard.ts'

/** Under the load of a whole test run, everything takes longer. Alone it stays far below a second. */
const LOAD = 10

export function flowTests(openPage: TestBrowser['page']): void {
  test('the URL that holdfast dashboard prints shows the locks, and each change within a second', async () => {
    await using cli = createStore()
    const url = ownRedisUrl()
    const driver = await connect(url)
    const lock = new DistributedLock({ driver, holderId: 'worker-1' })
    const [address = ''] = await cli.start(['dashboard', '--url', url, '--port', '0']).says(/^(http\S+)\n/)
    await lock.acquire('order:1')
    const { page, requests, check } = await openPage()
    await page.goto(address)
    await page.getByRole('link', { name: 'order:1' }).waitFor()
    expect(page.url()).not.toContain('token')

    const second = page.getByRole('link', { name: 'order:2' })
    await lock.acquire('order:2')
    const acquiredAt = performance.now()
    await second.waitFor()
    expect(performance.now() - acquiredAt).toBeLessThan(1_000 * LOAD)
    await lock.release('order:2')
    await second.waitFor({ state: 'detached' })

    const { host } = new URL(address)
    expect(requests.filter((each) => new URL(each).host !== host)).toEqual([])
    await check()
    await lock.close()
    await driver.close()
  })

  test('search, filters and sorting select what is shown, and stores are side by side', async () => {
    const [driver, other] = [memoryDriver(), memoryDriver()]
    const lock = new DistributedLock({ driver, holderId: 'worker-1' })
    const elsewhere = new DistributedLock({ driver: other, holderId: 'worker-2' })
    for (const name of ['order:1', 'order:2', 'report:daily']) await lock.acquire(name)
    await elsewhere.acquire('backup')
    const waiting = lock.acquire('order:2', { blockingTimeoutSeconds: 60 })
    const stores = [
      { name: 'first', driver },
      { name: 'second', driver: other },
    ]
    await using dashboard = await serveDashboard({ stores })
    const { page, check } = await openPage()
    await page.goto(dashboard.url)
    await page.getByRole('link', { name: 'backup' }).waitFor()
    await shows(page, ['backup', 'order:1', 'order:2', 'report:daily'])
    await page.getByRole('button', { name: 'second' }).click()
    await shows(page, ['backup'])
    await page.getByRole('button', { name: 'All stores' }).click()
    await page.getByLabel('Search').fill('worker-1 ord')
    await shows(page, ['order:1', 'order:2'])
    await page.getByLabel('Search').fill('')
    await page.getByLabel('Prefix').selectOption('report:')
    await shows(page, ['report:daily'])
    await page.getByLabel('Prefix').selectOption('')
    await page.getByLabel('State').selectOption('contended')
    await shows(page, ['order:2'])
    await page.getByLabel('State').selectOption('all')
    await page.getByRole('button', { name: 'Waiting' }).click()
    await shows(page, ['order:2', 'backup', 'order:1', 'report:daily'])
    await check()
    await lock.releaseAll()
    await waiting
    await Promise.all([lock.close(), elsewhere.close()])
  })

  test('each view shows what it is for, and axe finds nothing wrong in light, in dark and on a phone', async () => {
    await using scene = await startScene()
    await using dashboard = await serveDashboard({ stores: [{ driver: scene.driver }], allowActions: true })
    const { page, check } = await openPage()
    await page.goto(dashboard.url)
    const views: [hash: string, expected: string | RegExp][] = [
      ['#/locks', 'account:alice'],
      ['#/elections', '10.0.0.11:8080'],
      ['#/semaphores', '3 of 5'],
      ['#/rates', '10 per 1 h'],
      ['#/waits', 'None of these can go on'],
      ['#/lock/0/account%3Aalice', 'Fencing token'],
    ]
    for (const [hash, expected] of views) {
      await page.goto(`${dashboard.url}${hash}`)
      await page.getByText(expected).first().waitFor()
      expect(await violations(page), hash).toEqual([])
    }
    await page.getByRole('button', { name: 'Force release…' }).click()
    await page.getByRole('dialog').waitFor()
    expect(await violations(page), 'the dialog').toEqual([])
    await check()
    const phone = await openPage({ viewport: { width: 390, height: 780 }, colorScheme: 'dark' })
    for (const [hash, expected] of views) {
      await phone.page.goto(`${dashboard.url}${hash}`)
      await phone.page.getByText(expected).first().waitFor()
      expect(await violations(phone.page), `${hash} on a phone`).toEqual([])
      const isWide = 'document.documentElement.scrollWidth > document.documentElement.clientWidth'
      expect(await phone.page.evaluate(isWide), `${hash} scrolls sideways`).toBe(false)
    }
    await phone.check()
  })

  test('a keyboard is enough: search, walk the list, open a lock, and release it by force', async () => {
    const driver = memoryDriver()
    const lock = new DistributedLock({ driver, holderId: 'worker-1' })
    for (let number = 1; number <= 60; number += 1) await lock.acquire(`order:${number + 100}`)
    await using dashboard = await serveDashboard({ stores: [{ driver }], allowActions: true })
    const { page, check } = await openPage()
    await page.goto(dashboard.url)
    await page.getByRole('link', { name: 'order:101' }).waitFor()
    const focused = (): Promise<string> => page.evaluate('document.activeElement.textContent')
    await page.keyboard.press('/')
    await page.keyboard.type('order')
    for (let tabs = 0; (await focused()) !== 'order:101'; tabs += 1) {
      expect(tabs).toBeLessThan(20)
      await page.keyboard.press('Tab')
    }
    await page.keyboard.press('ArrowDown')
    await expect.poll(focused, POLL).toBe('order:102')
    await page.keyboard.press('End')
    await expect.poll(focused, POLL).toBe('order:160')
    await page.keyboard.press('Home')
    await expect.poll(focused, POLL).toBe('order:101')
    await page.keyboard.press('Enter')
    const button = page.getByRole('button', { name: 'Force release…' })
    await button.waitFor()
    await button.focus()
    await page.keyboard.press('Enter')
    await page.getByLabel('Why').waitFor()
    await page.getByLabel('Why').focus()
    await page.keyboard.type('it hangs')
    await page.keyboard.press('Tab')
    await page.keyboard.press('Tab')
    await page.keyboard.press('Enter')
    await page.getByText('It is free.').waitFor()
    expect((await driver.inspect({ lockName: 'order:101' })).leases).toEqual([])
    await check()
    await lock.close()
  })
}

const POLL = { timeout: 20_000, interval: 30 }

/** The names in the list, in order. */
async function shows(page: Page, names: readonly string[]): Promise<void> {
  await expect
    .poll(() => page.evaluate(`(${NAMES_IN_ORDER})([...document.querySelectorAll('[data-row]')])`), POLL)
    .toEqual(names)
}

/**
 * Rows keep their elements when they move, so the order of the elements is not that of the rows. A text, because it
 * runs in the page.
 */
const NAMES_IN_ORDER = `(all) => all
  .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
  .map((each) => each.textContent)`

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

async function violations(page: Page): Promise<string[]> {
  // Through the debugger, which the content security policy of the page does not apply to.
  await page.evaluate(`${AXE};0`)
  return page.evaluate(
    `axe.run().then(({ violations }) =>
      violations.map(({ id, nodes }) => id + ': ' + nodes.map(({ html }) => html).join(' ')))`,
  )
}

/** A store with something of everything, a deadlock included. */
async function startScene() {
  const driver = memoryDriver()
  const one = new DistributedLock({ driver, holderId: 'one', deadlockAfterSeconds: false })
  const two = new DistributedLock({ driver, holderId: 'two', deadlockAfterSeconds: false })
  const election = new LeaderElection({ driver, holderId: 'one', name: 'leader:jobs' })
  const semaphore = new Semaphore({ driver, holderId: 'two', limit: 5 })
  const limiter = new RateLimiter({ driver, limits: { limit: 10, periodSeconds: 3_600 } })
  await election.campaign({ value: '10.0.0.11:8080' })
  for (let permits = 0; permits < 3; permits += 1) await semaphore.acquire('pool:mail')
  await limiter.consume('api:customer:42')
  const options = { blockingTimeoutSeconds: 60, metadata: { step: 'debit' } }
  let bothHeld = 0
  const meet = async (): Promise<void> => {
    bothHeld += 1
    while (bothHeld < 2) await new Promise((resolve) => setTimeout(resolve, 5))
  }
  const transfer = (lock: DistributedLock, from: string, to: string) =>
    lock
      .withLock(from, () => meet().then(() => lock.withLock(to, async () => undefined, options)), options)
      .catch(() => undefined)
  const transfers = [transfer(one, 'account:alice', 'account:bob'), transfer(two, 'account:bob', 'account:alice')]
  return {
    driver,
    async [Symbol.asyncDispose]() {
      await Promise.all([one, two, election, semaphore, limiter].map((each) => each.close()))
      await Promise.all(transfers)
    },
  }
}
