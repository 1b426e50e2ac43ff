import { expect, test } from 'vitest'
import type { Claim } from '../../../src/core/driver.ts'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import type { TestBrowser } from '../../harness/browser.ts'
import { serveDashboard } from '../../harness/dashboard.ts'

const LOCKS = 10_000

export function scaleTests(openPage: TestBrowser['page']): void {
  test('10,000 locks are one list, of which only the rows in view are rendered', async () => {
    const driver = memoryDriver()
    const claim = (number: number): Claim => ({
      lockName: `job:${String(number).padStart(5, '0')}`,
      claimId: `claim-${number}`,
      holderId: `worker-${number % 50}`,
      mode: 'exclusive',
      permits: 1,
      ttlMs: 600_000,
      waiterTtlMs: 0,
    })
    await driver.acquire(
      Array.from({ length: LOCKS }, (_, number) => claim(number)),
      newCall(),
    )
    await using dashboard = await serveDashboard({ stores: [{ driver }] })
    const { page, check } = await openPage()
    await page.goto(dashboard.url)
    await page.getByText('10,000 locks').waitFor()
    expect(await page.locator('[data-row]').count()).toBeLessThan(60)
    await page.locator('[data-row]').first().focus()
    await page.keyboard.press('End')
    await page.getByRole('link', { name: 'job:09999' }).waitFor()
    expect(await page.locator('[data-row]').count()).toBeLessThan(60)
    expect(await page.getByRole('table').getAttribute('aria-rowcount')).toBe(String(LOCKS + 1))
    await page.getByLabel('Search').fill('job:07777')
    await page.getByText('1 of 10,000 locks').waitFor()
    // A change among all of them still arrives.
    const [answer] = await driver.acquire([claim(LOCKS)], newCall())
    expect(answer).toMatchObject({ granted: true })
    await page.getByText('1 of 10,001 locks').waitFor()
    await check()
  })
}
