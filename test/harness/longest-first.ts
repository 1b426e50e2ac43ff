import type { TestSpecification } from 'vitest/node'
import { BaseSequencer } from 'vitest/node'

/** The files that take longest, by the ends of their paths. The others start in vitest's own order. */
const LONGEST = [
  'drivers/sqlite/conformance.test.ts',
  'drivers/redlock/conformance.test.ts',
  'drivers/postgres/conformance.test.ts',
  'drivers/redis/conformance.test.ts',
  'drivers/redis/cluster.test.ts',
  'dashboard/browser.test.ts',
  'drivers/postgres-advisory/conformance.test.ts',
  'drivers/sqlite/processes.test.ts',
  'drivers/memory/conformance.test.ts',
  'simulation/simulation.test.ts',
  'drivers/secrets.test.ts',
  'drivers/redlock/voters.test.ts',
]

/** pytest has processes of its own, which would compete with everything else: it runs when the others have ended. */
const LAST = 'python/pytest.test.ts'

/** Starts the longest files first. Started last, one of them would run alone while the other workers are idle. */
export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification): number => {
      if (moduleId.endsWith(`/${LAST}`)) return LONGEST.length + 1
      const index = LONGEST.findIndex((end) => moduleId.endsWith(`/${end}`))
      return index === -1 ? LONGEST.length : index
    }
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b))
  }
}
