import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { startServers } from '../../test/harness/servers.ts'
import { startWorker, type Worker } from '../../test/harness/worker.ts'

/** Real processes on a real Redis and PostgreSQL, as in a small shop, and the dashboard in front of them. */
export interface Scene {
  readonly workers: Readonly<Record<string, Worker>>
  /** The URL that `holdfast dashboard` has printed. */
  readonly address: string
}

const HOSTS = ['api-1', 'api-2', 'api-3', 'worker-eu-1', 'worker-eu-2', 'worker-us-1']

export async function startScene(root: string): Promise<Scene> {
  const servers = await startServers({ redis: 1, postgres: true })
  const redis = servers.redis[0]?.url ?? ''
  const module = `${root}scripts/dashboard/scene-worker.mjs`
  const start = (holder: string, url: string): Promise<Worker> =>
    startWorker({ module }, { cwd: root, env: { SCENE_URL: url, SCENE_HOLDER: holder } })
  const workers = Object.fromEntries(
    await Promise.all(HOSTS.map(async (host) => [host, await start(host, redis)] as const)),
  )
  const cron = await start('cron-1', servers.postgres.url)
  const call = (host: string, name: string, ...args: unknown[]): Promise<unknown> | undefined =>
    workers[host]?.call(name, ...args)
  for (const host of HOSTS) {
    await call(host, 'orders', 6)
    await call(host, 'report', 6, 4)
    await call(host, 'permits', 'pool:mail', 5, 2)
    await call(host, 'permits', 'pool:thumbnails', 12, 1)
  }
  for (const host of HOSTS.slice(0, 3)) {
    await call(host, 'lead', 'leader:scheduler', `10.0.0.${HOSTS.indexOf(host) + 11}:8080`)
    await call(host, 'share', 'catalog', host === 'api-3')
  }
  for (const host of HOSTS.slice(3)) await call(host, 'lead', 'leader:invoices', `http://${host}:9000`)
  await call('api-1', 'limit', ['api:customer:42', 'login:203.0.113.7', 'api:customer:7', 'sms:verify'])
  await call('worker-eu-1', 'hold', 'import:products', 900)
  await call('worker-eu-2', 'hold', 'import:products', 900)
  for (const name of ['cron:cleanup', 'cron:exchange-rates', 'backup:nightly']) await cron.call('hold', name, 900)
  const dashboard = spawn(
    process.execPath,
    [
      `${root}dist/cli/main.js`,
      'dashboard',
      ...['--url', redis, '--url', servers.postgres.url, '--port', '0', '--allow-actions', '--by', 'ada@ops'],
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  const [output] = (await once(dashboard.stdout, 'data')) as [Buffer]
  process.on('exit', () => dashboard.kill())
  return { workers, address: output.toString().trim() }
}
