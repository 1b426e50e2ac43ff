import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { findBinaries } from './binaries.ts'
import { reapProcess } from './reaper.ts'

/** A real browser. Start one for a test file: each page has its own cookies and storage. */
export interface TestBrowser extends AsyncDisposable {
  readonly browser: Browser
  /** A page that fails the test, at `check`, if anything on it threw or broke the content security policy. */
  page(options?: BrowserContextOptions): Promise<TestPage>
}

export interface TestPage {
  readonly page: Page
  /** Everything that the page has requested. */
  readonly requests: readonly string[]
  /** Closes the page. Throws if it has reported an error. */
  check(): Promise<void>
}

export async function startBrowser(): Promise<TestBrowser> {
  const { chromium: binary } = await findBinaries(['chromium'])
  const server = await chromium.launchServer({
    executablePath: binary.path,
    env: { ...process.env, ...binary.env } as Record<string, string>,
    args: FLAGS,
  })
  const { pid } = server.process()
  const forget = pid === undefined ? () => {} : reapProcess(pid)
  const browser = await chromium.connect(server.wsEndpoint())
  return {
    browser,
    async page(options = {}) {
      const context = await browser.newContext({ viewport: { width: 1_280, height: 800 }, ...options })
      const page = await context.newPage()
      page.setDefaultTimeout(PATIENCE_MS)
      const requests: string[] = []
      const errors: string[] = []
      page.on('request', (request) => requests.push(request.url()))
      page.on('pageerror', (error) => errors.push(String(error.stack)))
      page.on('console', (message) => {
        if (message.type() === 'error') errors.push(message.text())
      })
      return {
        page,
        requests,
        async check() {
          await context.close()
          if (errors.length > 0) throw new Error(`the page reported:\n${errors.join('\n')}`)
        },
      }
    },
    async [Symbol.asyncDispose]() {
      await browser.close()
      await server.close()
      forget()
    },
  }
}

/** No sandbox, because root runs the tests in a container. Nothing that contacts another host. */
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

const PATIENCE_MS = 30_000
