import { readdirSync } from 'node:fs'
import { dirname } from 'node:path'

/** What one process of pytest runs. */
export interface PytestPart {
  readonly args: readonly string[]
  readonly variables?: Record<string, string>
}

/** The folders that take longest start first. Started last, one of them would run alone. */
const LONGEST = [
  'core',
  'drivers/postgres_advisory',
  'drivers/redis',
  'drivers/postgres',
  'drivers/sqlite',
  'primitives',
]

const CONFORMANCE = 'conformance/test_conformance.py'
/** conformance/conftest.py deals the stores out to this many processes. */
const CONFORMANCE_PARTS = 6

/** Divides all test files below a folder: the files of each folder are a part, and the conformance suite is several. */
export function pytestParts(folder: string): PytestPart[] {
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => /(?:^|\/)test_\w+\.py$/.test(path))
    .sort()
  const folders = [...new Set(files.map((path) => dirname(path)))]
  const rank = (name: string): number => (LONGEST.includes(name) ? LONGEST.indexOf(name) : LONGEST.length)
  const parts = folders
    .sort((a, b) => rank(a) - rank(b))
    .map((name) => ({
      args: files.filter((path) => dirname(path) === name && path !== CONFORMANCE).map((path) => `tests/${path}`),
    }))
  const conformance = Array.from({ length: CONFORMANCE_PARTS }, (_, index) => ({
    args: [`tests/${CONFORMANCE}`],
    variables: { HOLDFAST_TEST_PART: `${index}/${CONFORMANCE_PARTS}` },
  }))
  return [...parts.slice(0, LONGEST.length), ...conformance, ...parts.slice(LONGEST.length)]
}
