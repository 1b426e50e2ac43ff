import { mkdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Page } from 'playwright-core'
import { startBrowser } from '../../test/harness/browser.ts'
import { startScene } from './scene.ts'

const DESKTOP = { width: 1_280, height: 800 }
const PHONE = { width: 390, height: 780 }

/** Takes the pictures of the docs. What they show has happened: processes are killed, paused and force-released. */
export async function main(_: readonly string[], root: string): Promise<number> {
  const folder = `${root}docs/images/dashboard`
  mkdirSync(folder, { recursive: true })
  const { workers, address } = await startScene(root)
  await using browser = await startBrowser()
  const open = async (viewport: typeof DESKTOP, colorScheme: 'light' | 'dark', hash = ''): Promise<Page> => {
    const isPhone = viewport === PHONE
    const { page } = await browser.page({ viewport, colorScheme, deviceScaleFactor: 1.5, isMobile: isPhone })
    await page.goto(address)
    await page.getByText('Live').waitFor()
    await page.goto(`${new URL('/', address)}${hash}`)
    return page
  }
  const shoot = async (page: Page, name: string, fullPage = false): Promise<void> => {
    await sleep(1_500) // Bars and charts move with each reading.
    await page.screenshot({ path: `${folder}/${name}.png`, fullPage })
    console.log(`${folder}/${name}.png`)
  }

  const list = await open(DESKTOP, 'light')
  const lock = await open(DESKTOP, 'light', '#/lock/0/report%3Adaily')
  const isHeldBy = (holder: string) =>
    lock.locator('[aria-label=Holders]').getByText(holder, { exact: true }).first().waitFor({ timeout: 120_000 })
  await sleep(15_000) // Some hand-offs.
  await isHeldBy('worker-us-1')
  await workers['worker-us-1']?.kill()
  await sleep(14_000) // Its lease ends, and others follow.
  await isHeldBy('worker-eu-2')
  await workers['worker-eu-2']?.pause()
  await sleep(12_000)
  workers['worker-eu-2']?.resume()
  await isHeldBy('api-2')
  await lock.getByRole('button', { name: 'Force release…' }).click()
  await lock.getByLabel('Why').fill('api-2 hangs in the PDF renderer, see INC-481')
  await shoot(lock, 'force-release')
  await lock.getByRole('button', { name: 'Force release', exact: true }).click()
  await lock.locator('[data-end=force-released]').first().waitFor({ state: 'attached' })
  await sleep(7_000)
  await workers['api-1']?.call('nest', 'account:alice', 'account:bob')
  await workers['api-3']?.call('nest', 'account:bob', 'account:alice')
  await sleep(4_000)

  await shoot(list, 'light')
  await shoot(lock, 'lock', true)
  await shoot(await open(DESKTOP, 'dark'), 'dark')
  await shoot(await open(PHONE, 'light'), 'phone')
  await shoot(await open(DESKTOP, 'light', '#/waits'), 'waits')
  return 0
}
