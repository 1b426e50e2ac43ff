import type { Capabilities } from '../../core/driver.ts'
import { type Need, unmetReason } from './needs.ts'
import type { TestContext } from './test-context.ts'

/**
 * What the suite needs of a test runner. Vitest's functions fit as they are, and `it.concurrent` fits as `it`; of
 * `node:test` it is `{ describe, it, beforeAll: before, afterAll: after }`. Assertions are Node's own.
 */
export interface TestRunner {
  describe(title: string, body: () => void): unknown
  readonly it: RegisterTest & { readonly skip: RegisterTest }
  beforeAll(body: () => Promise<void>): unknown
  afterAll(body: () => Promise<void>): unknown
}

export type RegisterTest = (title: string, body: () => Promise<void>) => unknown

/** One group of tests. It registers its tests and nothing else. */
export type Group = (test: Test) => void

export type Test = {
  (title: string, body: TestBody): void
  /** Skipped, with the reason of the first need that the driver's capabilities do not meet. */
  (title: string, needs: readonly Need[], body: TestBody): void
}

export type TestBody = (context: TestContext) => Promise<void>

export interface GroupContext {
  readonly runner: TestRunner
  readonly capabilities: Capabilities
  /** Everything a test opens is closed after it. */
  withTestContext(body: TestBody): Promise<void>
}

/** Registers a group. `needs` hold for every test in it. */
export function registerGroup(context: GroupContext, title: string, group: Group, needs: readonly Need[] = []): void {
  const { runner, capabilities, withTestContext } = context
  const test = (testTitle: string, needsOrBody: readonly Need[] | TestBody, maybeBody?: TestBody): void => {
    const [testNeeds, body] =
      typeof needsOrBody === 'function' ? [[], needsOrBody] : [needsOrBody, maybeBody as TestBody]
    const reason = unmetReason(capabilities, [...needs, ...testNeeds])
    if (reason === undefined) runner.it(testTitle, () => withTestContext(body))
    else runner.it.skip(`${testTitle} (skipped: ${reason})`, async () => {})
  }
  runner.describe(title, () => group(test))
}
