import type { Capabilities } from '../../core/driver.ts'
import { type Need, unmetReason } from './needs.ts'
import type { TestContext } from './test-context.ts'

/**
 * What the suite needs of a test runner. Vitest's functions fit as they are, and `it.concurrent` fits as `it`. With
 * `node:test`, pass `{ describe, it, beforeAll: before, afterAll: after }`. Assertions are Node's own.
 */
export interface TestRunner {
  describe(title: string, body: () => void): unknown
  readonly it: RegisterTest & { readonly skip: RegisterTest }
  beforeAll(body: () => Promise<void>): unknown
  afterAll(body: () => Promise<void>): unknown
}

export type RegisterTest = (title: string, body: () => Promise<void>) => unknown

/** A group of tests. It only registers them. */
export type Group = (test: Test) => void

export type Test = {
  (title: string, body: TestBody): void
  /** Skipped if the driver's capabilities do not meet all needs. The title states the first reason. */
  (title: string, needs: readonly Need[], body: TestBody): void
}

export type TestBody = (context: TestContext) => Promise<void>

export interface GroupContext {
  readonly runner: TestRunner
  readonly capabilities: Capabilities
  /** Everything a test opens is closed after it. */
  withTestContext(body: TestBody): Promise<void>
}

/** Registers a group. Every test in it has these `needs`. */
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
