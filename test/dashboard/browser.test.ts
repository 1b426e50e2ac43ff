import { afterAll, beforeAll, expect, test } from 'vitest'
import { connect } from '../../src/connect.ts'
import { DistributedLock } from '../../src/index.ts'
import { startBrowser, type TestBrowser } from '../harness/browser.ts'
import { createStore } from '../harness/cli.ts'
import { ownRedisUrl } from '../harness/dashboard.ts'

let browser: TestBrowser
beforeAll(async () => {
  browser = await startBrowser()
})
afterAll(() => browser[Symbol.asyncDispose]())

test('the URL that holdfast dashboard prints shows the locks of a store, and then each change within a second', async () => {
  await using cli = createStore()
  const url = ownRedisUrl()
  const driver = await connect(url)
  const lock = new DistributedLock({ driver, holderId: 'worker-1' })
  const [address = ''] = await cli.start(['dashboard', '--url', url, '--port', '0']).says(/^(http\S+)\n/)
  await lock.acquire('order:1')
  const { page, requests, check } = await browser.page()
  await page.goto(address)
  await page.getByRole('link', { name: 'order:1' }).waitFor()
  expect(page.url()).not.toContain('token')

  const second = page.getByRole('link', { name: 'order:2' })
  await lock.acquire('order:2')
  const acquiredAt = performance.now()
  await second.waitFor()
  const shownAfterMs = performance.now() - acquiredAt
  await lock.release('order:2')
  await second.waitFor({ state: 'detached' })
  expect(shownAfterMs).toBeLessThan(1_000 * LOAD)

  const { host } = new URL(address)
  expect(requests.filter((each) => new URL(each).host !== host)).toEqual([])
  await check()
  await lock.close()
  await driver.close()
})

/** Under the load of the whole test run, everything takes longer. Alone it stays far below a second. */
const LOAD = 10
