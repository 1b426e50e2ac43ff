import { afterAll, beforeAll, describe } from 'vitest'
import { startBrowser, type TestBrowser } from '../harness/browser.ts'
import { accessTests } from './browser/access.ts'
import { flowTests } from './browser/flows.ts'
import { scaleTests } from './browser/scale.ts'
import { storyTests } from './browser/story.ts'

/** One browser for all of them: starting it takes longer than most tests. */
let browser: TestBrowser
beforeAll(async () => {
  browser = await startBrowser()
})
afterAll(() => browser[Symbol.asyncDispose]())

const openPage: TestBrowser['page'] = (options) => browser.page(options)

describe('in a browser', () => {
  flowTests(openPage)
  accessTests(openPage)
  scaleTests(openPage)
  storyTests(openPage)
})
