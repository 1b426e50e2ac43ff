import { execFile } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findBinaries } from './binaries.ts'
import { makeFolder } from './folders.ts'
import { freePort } from './ports.ts'
import { launch, type Server } from './server-process.ts'

export interface PrometheusOptions {
  /** For each job, the port of 127.0.0.1 whose /metrics is scraped. */
  targets: Record<string, number>
  scrapeMs: number
  /** Files with rules, which are evaluated as often. */
  rules: string[]
}

export interface Prometheus extends Server {
  /** The samples of an instant query. */
  query(expression: string): Promise<Sample[]>
  rules(): Promise<Rule[]>
}

export interface Sample {
  labels: Record<string, string>
  value: number
}

export interface Rule {
  name: string
  health: 'ok' | 'unknown' | 'err'
  state: 'inactive' | 'pending' | 'firing'
  lastError?: string
}

export async function startPrometheus({ targets, scrapeMs, rules }: PrometheusOptions): Promise<Prometheus> {
  const { path, env } = (await findBinaries(['prometheus'])).prometheus
  const port = await freePort()
  const folder = makeFolder('prometheus')
  const config = join(folder.path, 'prometheus.yml')
  const data = join(folder.path, 'data')
  // JSON is YAML.
  const settings = {
    global: { scrape_interval: `${scrapeMs}ms`, scrape_timeout: `${scrapeMs}ms`, evaluation_interval: `${scrapeMs}ms` },
    rule_files: rules,
    scrape_configs: Object.entries(targets).map(([job_name, target]) => ({
      job_name,
      static_configs: [{ targets: [`127.0.0.1:${target}`] }],
    })),
  }
  writeFileSync(config, JSON.stringify(settings))
  const url = `http://127.0.0.1:${port}`
  const server = await launch({
    name: 'prometheus',
    command: path,
    args: [`--config.file=${config}`, `--storage.tsdb.path=${data}`, `--web.listen-address=127.0.0.1:${port}`],
    port,
    url,
    folder,
    env,
    signals: { stop: 'SIGTERM', reap: 'SIGKILL' },
    async isReady() {
      const flags = await get<Record<string, string>>(`${url}/api/v1/status/flags`)
      return flags['storage.tsdb.path'] === data && (await fetch(`${url}/-/ready`)).ok
    },
  })
  return Object.assign(server, {
    async query(expression: string) {
      type Result = { metric: Record<string, string>; value: [number, string] }
      const found = await get<{ result: Result[] }>(`${url}/api/v1/query?query=${encodeURIComponent(expression)}`)
      return found.result.map(({ metric, value: [, value] }) => ({ labels: metric, value: Number(value) }))
    },
    async rules() {
      const { groups } = await get<{ groups: { rules: Rule[] }[] }>(`${url}/api/v1/rules`)
      return groups.flatMap((group) => group.rules)
    },
  })
}

/** Runs Prometheus's own tool. Rejects with its output if it fails. */
export async function promtool(args: string[], options: { input?: string; cwd?: string } = {}): Promise<string> {
  const { path, env } = (await findBinaries(['promtool'])).promtool
  return new Promise((resolve, reject) => {
    const settings = { env: { ...process.env, ...env }, timeout: 30_000, ...(options.cwd && { cwd: options.cwd }) }
    const child = execFile(path, args, settings, (error, stdout, stderr) => {
      // What `check metrics` finds is on standard error.
      if (error === null) resolve(stdout + stderr)
      else reject(new Error(`promtool ${args.join(' ')} failed:\n${stdout}${stderr}`, { cause: error }))
    })
    child.stdin?.end(options.input ?? '')
  })
}

async function get<T>(url: string): Promise<T> {
  const answer = (await (await fetch(url)).json()) as { status: string; error?: string; data: T }
  if (answer.status !== 'success') throw new Error(`${url} failed: ${answer.error}`)
  return answer.data
}
