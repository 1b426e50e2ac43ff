import { spawn } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { beforeAll, describe, expect, test } from 'vitest'
import { findBinaries } from './binaries.ts'
import { until } from './processes.ts'

const repository = fileURLToPath(new URL('../..', import.meta.url))

// In a hook, because installing servers on a new machine takes longer than the timeout of a test.
beforeAll(() => findBinaries(['redis-server', 'postgres', 'initdb', 'pgbouncer']), 300_000)

describe.concurrent('a test run that is interrupted', { timeout: 120_000 }, () => {
  test.each(['SIGKILL', 'SIGTERM', 'SIGINT'] as const)(
    'by %s leaves no server, worker or folder behind',
    async (signal) => {
      const folder = mkdtempSync(join(tmpdir(), 'holdfast-interrupted-'))
      chmodSync(folder, 0o755)
      const up = join(folder, 'up')
      const config = join(repository, 'test/harness/fixtures/interrupted-run.config.ts')
      const runner = spawn(process.execPath, ['node_modules/vitest/vitest.mjs', 'run', '--config', config], {
        cwd: repository,
        env: {
          ...withoutVitest(process.env),
          TMPDIR: folder,
          HOLDFAST_TEST_SERVERS: 'redis,postgres,pgbouncer',
          HOLDFAST_FIXTURE_UP: up,
        },
        stdio: ['ignore', 'pipe', 'pipe'],
      })
      let output = ''
      for (const stream of [runner.stdout, runner.stderr])
        stream.on('data', (text) => {
          output += text
        })
      try {
        await until(() => existsSync(up), { timeoutMs: 80_000, failure: () => `the run did not get up:\n${output}` })
        const names = processesOf(folder).map(({ name }) => name)
        expect(names.filter((name) => name === 'redis-server')).toHaveLength(6)
        expect(names).toEqual(expect.arrayContaining(['node', 'postgres', 'pgbouncer']))

        runner.kill(signal)
        const left = () => processesOf(folder).map(({ pid, name }) => `${pid} ${name}`)
        await until(() => left().length === 0, {
          timeoutMs: 15_000,
          failure: () => `left behind: ${left()}\n${output}`,
        })
      } finally {
        for (const { pid } of processesOf(folder)) process.kill(pid, 'SIGKILL')
        rmSync(folder, { recursive: true, force: true })
      }
    },
  )
})

/** Processes in the folder, or with it as TMPDIR. A server that sets its title overwrites its environment. */
function processesOf(folder: string): { pid: number; name: string }[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const isInFolder = readlinkSync(`/proc/${pid}/cwd`).startsWith(folder)
        if (!isInFolder && !readFileSync(`/proc/${pid}/environ`, 'utf8').includes(`TMPDIR=${folder}`)) return []
        return [{ pid: Number(pid), name: readFileSync(`/proc/${pid}/comm`, 'utf8').trim() }]
      } catch {
        return [] // The process has ended meanwhile.
      }
    })
}

/** With these variables, the inner runner would take itself for a worker of the outer one. */
function withoutVitest(environment: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(environment).filter(([name]) => !name.startsWith('VITEST')))
}
