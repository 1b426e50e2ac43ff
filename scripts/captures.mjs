// @ts-check
// Plays a small scene on a real store, and writes what `holdfast top` and `holdfast ls --watch` show of it in a real
// terminal of 80 × 24 to docs/images: npm run captures. Needs tmux.
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { root } from './support/command.mjs'
import { openTerminal } from './support/terminal.mjs'
import { terminalPicture } from './support/terminal-picture.mjs'

const COLUMNS = 80
const ROWS = 24
/** How long the scene plays before the first capture: then the hand-offs per second cover their ten seconds. */
const SCENE_MS = 14_000

const folder = mkdtempSync(`${tmpdir()}/captures-`)
const terminal = await openTerminal({
  folder,
  columns: COLUMNS,
  rows: ROWS,
  // The path is relative, so that the pictures do not show a folder of this machine.
  env: { ...process.env, HOLDFAST_URL: 'sqlite:locks.db', NO_COLOR: undefined },
})
try {
  const ended = new AbortController()
  await playScene(`sqlite:${folder}/locks.db`, ended.signal)
  await terminal.enter(`holdfast() { '${process.execPath}' '${root}dist/cli/main.js' "$@"; }; clear; holdfast top`)
  await terminal.shows(/locks held/)
  await sleep(SCENE_MS)
  await capture('top', 'holdfast top: locks with their holders, ages, waiters, longest waits and hand-offs per second')
  await terminal.press('Enter')
  await terminal.shows(/QUEUE/)
  await capture('top-inspect', 'holdfast top: one lock, with its holder, metadata, and the queue in its order')
  await terminal.type('qq')
  await terminal.enter('clear; holdfast ls --watch')
  await terminal.shows(/LEFT +WAITERS/)
  await capture('ls-watch', 'holdfast ls --watch: a line for each lease, again every second')
  await terminal.press('C-c')
  ended.abort()
} finally {
  await terminal.close()
  rmSync(folder, { recursive: true, force: true })
}
process.exit()

/**
 * @param {string} name
 * @param {string} title
 */
async function capture(name, title) {
  const lines = (await terminal.styledScreen()).trimEnd().split('\n')
  const all = [...lines, ...Array.from({ length: ROWS - lines.length }, () => '')]
  writeFileSync(`${root}docs/images/${name}.svg`, terminalPicture(all, { title, columns: COLUMNS }))
}

/**
 * Three machines: an order that two others wait for, a clean-up with a queue, readers of one report, and workers that
 * pass a mailbox on to each other.
 *
 * @param {string} url
 * @param {AbortSignal} signal
 */
async function playScene(url, signal) {
  const { DistributedLock, ReadWriteLock } = await import(`${root}dist/index.js`)
  const holderIds = ['web-1:4711', 'web-2:1234', 'web-3:88']
  const [web1, web2, web3] = holderIds.map((holderId) => new DistributedLock({ url, holderId }))
  const readers = holderIds.slice(1).map((holderId) => new ReadWriteLock({ url, holderId }))
  const wait = { blocking: true, blockingTimeoutSeconds: 600, signal }
  const ignore = () => undefined

  await web1.hold('cron:cleanup', { metadata: { command: 'cleanup.sh', pid: 4711 }, heartbeat: true })
  await web3.hold('order:1042', { timeoutSeconds: 60, heartbeat: true })
  await web2.hold('deploy:shop', { timeoutSeconds: 90, heartbeat: true })
  for (const each of readers) await each.acquireRead('report:daily', { heartbeat: true })
  await sleep(1_500)
  for (const each of [web2, web3]) each.acquire('cron:cleanup', wait).catch(ignore)
  web1.acquire('order:1042', wait).catch(ignore)
  await sleep(1_000)
  web2.acquire('order:1042', wait).catch(ignore)
  web1.acquire('cron:cleanup', wait).catch(ignore)
  for (const each of [web1, web2, web3]) work(each).catch(ignore)

  /** @param {import('../dist/index.js').DistributedLock} worker */
  async function work(worker) {
    while (!signal.aborted) {
      await worker.withLock('mail:outbox', () => sleep(700), wait)
      await sleep(300)
    }
  }
}
