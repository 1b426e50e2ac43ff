import { spawn } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { readable } from '../../scripts/conformance-table.mjs'
import { findBinaries } from './binaries.ts'
import { makeFolder } from './folders.ts'
import { killProcess } from './processes.ts'
import { pytestParts } from './pytest-parts.ts'
import { assertPython, python } from './python.ts'
import { reapProcess } from './reaper.ts'
import type { SharedServers } from './shared-servers.ts'

export interface PytestRun {
  /** Whether all tests were selected. */
  readonly isWhole: boolean
  readonly code: number | null
  /** Everything that pytest printed. */
  readonly output: string
  readonly tests: readonly PythonTest[]
}

export interface PythonTest {
  readonly file: string
  readonly name: string
  readonly outcome: 'passed' | 'failed' | 'skipped'
  /** The failure, or the reason why the test was skipped. */
  readonly text: string
  readonly seconds: number
}

const PACKAGE = join(import.meta.dirname, '../../python')
const TESTS = join(PACKAGE, 'tests')
/** The tests wait more than they compute. */
const PROCESSES = 6
/** Several times what the suite takes, for a machine that is busy. A test that hangs fails long before. */
const TIMEOUT_MS = 480_000

/** Runs the Python tests. `HOLDFAST_TEST_PYTEST="tests/core -x"` replaces the arguments that select tests. */
export async function runPytest(servers: SharedServers): Promise<PytestRun> {
  await assertPython()
  const folder = makeFolder('pytest')
  const environment = await serverVariables(servers)
  const some = process.env['HOLDFAST_TEST_PYTEST']
  const parts = some === undefined ? pytestParts(TESTS) : [{ args: some.split(' ') }]
  const waiting = [...parts.entries()]
  const runs: PytestRun[] = []
  // One process after the other in each row. Not by a plugin of pytest: each of its processes would collect all tests,
  // and send every report to the first one.
  const row = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const [index, { args, variables }] = next
      runs.push(await runPart(args, join(folder.path, `${index}`), { ...environment, ...variables }))
    }
  }
  try {
    await Promise.all(Array.from({ length: PROCESSES }, row))
    return {
      isWhole: some === undefined,
      code: runs.find(({ code }) => code !== 0)?.code ?? 0,
      output: runs.map(({ output }) => output).join('\n'),
      tests: runs.flatMap(({ tests }) => tests),
    }
  } finally {
    folder.remove()
  }
}

async function runPart(
  selection: readonly string[],
  folder: string,
  variables: Record<string, string>,
): Promise<PytestRun> {
  mkdirSync(folder)
  const report = join(folder, 'report.json')
  const args = ['-m', 'pytest', '-q', '-p', 'support.json_report', '-p', 'no:cacheprovider', ...selection]
  const child = spawn(python, args, {
    cwd: PACKAGE,
    env: {
      ...process.env,
      ...variables,
      NODE_OPTIONS: '',
      PYTHONPATH: [join(PACKAGE, 'src'), TESTS].join(':'),
      PYTHONDONTWRITEBYTECODE: '',
      HOLDFAST_TEST_NODE: process.execPath,
      HOLDFAST_TEST_REPORT: report,
      TMPDIR: folder,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text
    })
  }
  const pid = child.pid
  if (pid === undefined) throw new Error(`could not start ${python}`)
  const forget = reapProcess(pid)
  const deadline = setTimeout(() => {
    output += `\npytest was killed after ${TIMEOUT_MS / 1_000} s\n`
    void killProcess(pid)
  }, TIMEOUT_MS)
  try {
    const code = await new Promise<number | null>((resolve) => child.once('close', resolve))
    const tests = existsSync(report) ? testsOf(readFileSync(report, 'utf8')) : []
    return { isWhole: false, code, output, tests }
  } finally {
    clearTimeout(deadline)
    forget()
  }
}

/** The variables that python/tests/conftest.py reads: those of shared-servers.ts. */
async function serverVariables(servers: SharedServers): Promise<Record<string, string>> {
  const { redis, cluster, sentinel, postgres, pgbouncer } = servers
  const server = redis && (await findBinaries(['redis-server']))['redis-server']
  return {
    ...(redis && { HOLDFAST_TEST_REDIS_URL: redis.join(',') }),
    ...(cluster && { HOLDFAST_TEST_REDIS_CLUSTER_URL: cluster.join(',') }),
    ...(sentinel && {
      HOLDFAST_TEST_REDIS_SENTINEL_URL: sentinel.urls.join(','),
      HOLDFAST_TEST_REDIS_SENTINEL_MASTER: sentinel.masterName,
    }),
    ...(postgres && { HOLDFAST_TEST_POSTGRES_URL: postgres }),
    ...(pgbouncer && { HOLDFAST_TEST_PGBOUNCER_URL: pgbouncer }),
    ...(server && { HOLDFAST_TEST_REDIS_SERVER: server.path }),
    ...(server?.env['LD_LIBRARY_PATH'] && { HOLDFAST_TEST_REDIS_LIBRARIES: server.env['LD_LIBRARY_PATH'] }),
  }
}

function testsOf(lines: string): PythonTest[] {
  return lines.split('\n').flatMap((line) => {
    if (line === '') return []
    const { id, ...rest } = JSON.parse(line) as Omit<PythonTest, 'file' | 'name'> & { id: string }
    const [file = id, ...names] = readable(id).split('::')
    return { ...rest, file: `python/${file}`, name: names.join('::') || 'is collected' }
  })
}
