import { expect, test } from 'vitest'
import { memoryDriver } from '../../../src/drivers/memory.ts'
import { DistributedLock } from '../../../src/index.ts'
import type { TestBrowser } from '../../harness/browser.ts'
import { createStore } from '../../harness/cli.ts'
import { serveDashboard } from '../../harness/dashboard.ts'
import { askHttp } from '../../harness/http.ts'

export function accessTests(openPage: TestBrowser['page']): void {
  test('names and metadata are text, and nothing in them is executed', async () => {
    const driver = memoryDriver()
    const hostile = [
      '<img src=x onerror="document.title=\'pwned\'">',
      '"><script>document.title="pwned"</script>',
      'javascript:document.title="pwned"',
      'a\u202egpj.exe',
      '../../api/force-release#/lock/0/%00',
      '{{constructor.constructor("document.title=\'pwned\'")()}}',
      '__proto__',
    ]
    const lock = new DistributedLock({ driver, holderId: '<b onclick=x>holder</b>' })
    const metadata = { '<script>': '</pre><script>document.title="pwned"</script>', toString: 'x' }
    for (const name of hostile) await lock.acquire(name, { metadata })
    await using dashboard = await serveDashboard({
      stores: [{ name: '<i>store</i>', driver }],
      electionPrefixes: ['__proto__'],
    })
    const { page, requests, check } = await openPage()
    await page.goto(dashboard.url)
    for (const name of hostile) {
      const shown = name.replace('\u202e', '\\u202e')
      const link = page.getByRole('link', { name: shown, exact: true })
      await link.click()
      await page.getByText('Fencing token').waitFor()
      expect(await page.locator('h1').textContent()).toBe(shown)
      expect(await page.locator('pre').textContent()).toContain('</pre><script>')
      await page.getByRole('link', { name: '← Locks' }).click()
      await link.waitFor()
    }
    for (const view of ['elections', 'waits', 'rates', 'semaphores']) await page.goto(`${dashboard.url}#/${view}`)
    expect(await page.title()).not.toContain('pwned')
    expect(await page.locator('main script, main img, main b[onclick]').count()).toBe(0)
    expect(requests.filter((each) => !each.startsWith(dashboard.url))).toEqual([])
    await check()
    await lock.close()
  })

  test('without the token, under a foreign host name and from a foreign page there is nothing to see', async () => {
    await using cli = createStore()
    const [address = ''] = await cli.start(['dashboard', '--port', '0']).says(/^(http\S+)\n/)
    const { origin, port } = new URL(address)
    const { page } = await openPage()
    expect((await page.goto(origin))?.status()).toBe(401)
    expect((await page.goto(`${origin}/?token=guess`))?.status()).toBe(401)
    // A foreign name that resolves to this machine, as in DNS rebinding. A browser sends it as the host.
    const rebound = await askHttp({ port: Number(port), path: new URL(address).search, host: `evil.example:${port}` })
    expect(rebound.status).toBe(421)
    expect((await page.goto(address))?.status()).toBe(200)
    await page.getByText('Live').waitFor()
    // With the cookie: another origin of the same machine can neither read nor act.
    await using elsewhere = await serveDashboard({ stores: [{ driver: memoryDriver() }] })
    const foreign = await page.context().newPage()
    await foreign.goto(`${elsewhere.url}icon.svg`)
    const attack = (path: string, init: string): Promise<string> =>
      foreign.evaluate(`fetch('${origin}${path}', ${init}).then(() => 'sent', () => 'refused')`)
    expect(await attack('/api/lock?store=0&name=a', `{ credentials: 'include' }`)).toBe('refused')
    const cookie = (await page.context().cookies()).map(({ name, value }) => `${name}=${value}`).join('; ')
    const headers = { cookie, origin: 'http://evil.example' }
    expect((await askHttp({ port: Number(port), path: '/api/stream', headers })).status).toBe(403)
    expect((await askHttp({ port: Number(port), path: '/api/force-release', method: 'POST', headers })).status).toBe(
      403,
    )
    const [stored] = await page.context().cookies()
    expect(stored).toMatchObject({ httpOnly: true, sameSite: 'Strict' })
    expect(await page.evaluate('document.cookie')).toBe('')
    await page.context().close()
  })

  test('the page connects again after a proxy has answered in place of the server', async () => {
    await using dashboard = await serveDashboard({ stores: [{ driver: memoryDriver() }] })
    const { page } = await openPage()
    let answers = 0
    await page.route('**/api/stream', (route) => (++answers === 1 ? route.fulfill({ status: 502 }) : route.continue()))
    await page.goto(dashboard.url)
    await page.getByText('Live').waitFor()
    expect(answers).toBe(2)
    await page.context().close()
  })
}
