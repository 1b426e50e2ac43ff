import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { linkSync, mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { describe, it, vi } from 'vitest'
import type { Claim, Driver } from '../../../src/core/driver.ts'
import { isMountPoint } from '../../../src/drivers/sqlite/file.ts'
import { openSqlite, sqliteDriver } from '../../../src/drivers/sqlite.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { clientName } from '../../harness/sqlite-client.ts'
import { claimOn, createContext, grantOf, isGranted } from '../../harness/sqlite-context.ts'
import { startWorker, type Worker } from '../../harness/worker.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

const STAYS_OPEN = clientName() === 'libsql'

/**
 * SQLite finds a database's write-ahead log by the database's name. Two processes that open one database under two
 * names, or one name with two logs, do not see each other's leases. The driver in this process has to notice it.
 */
describe.concurrent('sqlite alone, failure 42: a hard link', () => {
  it('a file with two names is refused under both of them', async () => {
    await using context = createContext()
    await (await openSqlite(`sqlite:${context.path}`)).close()
    const other = `${context.folder}/other.db`
    linkSync(context.path, other)
    for (const path of [context.path, other]) {
      await assert.rejects(openSqlite(`sqlite:${path}`), { name: 'StoreError', message: /has 2 hard links/ })
    }
    await assert.rejects(sqliteDriver({ database: await context.database() }), { message: /has 2 hard links/ })
  })

  it('one that is created while the file is open stops all grants until it is removed', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    linkSync(context.path, `${context.folder}/other.db`)
    const refused = { name: 'StoreError', message: /has 2 hard links/ }
    await assert.rejects(driver.acquire([claimOn('name')], newCall()), refused)
    await assert.rejects(driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), refused)
    rmSync(`${context.folder}/other.db`)
    assert.deepEqual(await driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['renewed'])
    assert.equal(await isGranted(driver, claimOn('name')), true)
  })
})

describe('sqlite alone, failure 42: the file is a mount point', () => {
  it('is refused, because its write-ahead log would be beside another name', async () => {
    await using context = createContext()
    await (await openSqlite(`sqlite:${context.path}`)).close()
    mkdirSync(`${context.folder}/container`)
    writeFileSync(`${context.folder}/container/locks.db`, '')
    // Mounts in a namespace of its own disappear with the process.
    const script = `
      mount --bind "$0/locks.db" "$0/container/locks.db"
      exec "$1" --input-type=module --eval "$2" "$0"
    `
    const { stdout } = await promisify(execFile)(
      'unshare',
      ['--mount', 'sh', '-ec', script, context.folder, process.execPath, opensBoth],
      { cwd: process.cwd(), env: { ...process.env, NODE_OPTIONS: '' } },
    )
    assert.deepEqual(JSON.parse(stdout), {
      outside: 'opened',
      inside:
        `the lock file ${context.folder}/container/locks.db is a mount point (as with "docker run -v file:file"), so ` +
        'other processes do not see the write-ahead log that SQLite keeps beside it; mount its folder instead',
    })
  })

  const table = [
    '28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard',
    '40 28 254:0 /srv/locks.db /data/locks.db rw,relatime - ext4 /dev/vda rw,discard',
    '41 28 254:0 /srv/a\\040b.db /data/a\\040b.db rw,relatime - ext4 /dev/vda rw,discard',
    '42 28 254:0 /srv/hidden.db /mnt/hidden.db rw,relatime - ext4 /dev/vda rw,discard',
    '43 28 0:48 / /mnt rw - tmpfs tmpfs rw,size=64k',
    '',
  ].join('\n')
  it.each<[string, boolean, string]>([
    ['/data/locks.db', true, 'a file that is mounted over a file'],
    ['/data/a b.db', true, 'a space in its name, which the table writes as \\040'],
    ['/data/other.db', false, 'a file beside it'],
    ['/mnt/hidden.db', false, 'a mount that a later one hides'],
  ])('%s: %s (%s)', (path, isMounted) => {
    assert.equal(isMountPoint(path, table), isMounted)
  })

  it('this machine’s own table can be read', () => {
    assert.equal(isMountPoint(import.meta.filename, readFileSync('/proc/self/mountinfo', 'utf8')), false)
  })
})

describe.concurrent('sqlite alone, failure 42: the files beside it are removed or replaced while it is open', () => {
  it.each([
    ['the write-ahead log’s index', ['-shm']],
    ['the write-ahead log and its index', ['-wal', '-shm']],
  ])('%s: what another process holds is not granted', async (_, suffixes) => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    for (const suffix of suffixes) rmSync(`${context.path}${suffix}`)
    await using other = await startOther(context.path)
    assert.ok((await other.grant(claimOn('name'))) > fencingToken)
    await notGranted(driver, claimOn('name'))
    if (STAYS_OPEN) return
    // Leases in a removed log are lost. If only the index was removed, the log is read again.
    const [kept, renewed] = [!suffixes.includes('-wal'), await driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }])]
    assert.deepEqual(renewed, [kept ? 'renewed' : 'lost'])
    assert.equal(await other.isGranted(claimOn('held')), !kept)
    await grantOf(driver, claimOn('late'))
    assert.equal(await other.isGranted(claimOn('late')), false)
  })

  it('two drivers of one process, which share open files, grant nothing until both use the new log', async () => {
    await using context = createContext()
    const drivers = [
      await context.opened(openSqlite(`sqlite:${context.path}`)),
      await context.opened(openSqlite(`sqlite:${context.path}`)),
    ]
    for (const suffix of ['-wal', '-shm']) rmSync(`${context.path}${suffix}`)
    await using other = await startOther(context.path)
    await other.grant(claimOn('name'))
    for (const driver of [...drivers, ...drivers]) {
      const granted = await isGranted(driver, claimOn('name')).catch((error: Error) => error.name)
      assert.ok(granted === false || granted === 'StoreError', `${granted}`)
    }
    // If SQLite keeps a removed file open, it is unknown when it closes it.
    if (!STAYS_OPEN) for (const driver of drivers) await notGranted(driver, claimOn('name'))
  })

  it.each([
    ['the write-ahead log', ['-wal']],
    ['the write-ahead log and its index', ['-wal', '-shm']],
  ])('%s, while no other process has it open: held locks stay held', async (_, suffixes) => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    for (const suffix of suffixes) rmSync(`${context.path}${suffix}`)
    await notGranted(driver, claimOn('held'))
    if (STAYS_OPEN) return
    assert.deepEqual(await driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['renewed'])
    await using other = await startOther(context.path)
    assert.equal(await other.isGranted(claimOn('held')), false)
  })

  it('a database that was passed in: an error, and no grant', async () => {
    await using context = createContext()
    const driver = await sqliteDriver({ database: await context.database() })
    await grantOf(driver, claimOn('held'))
    rmSync(`${context.path}-wal`)
    for (let tries = 0; tries < 3; tries += 1) {
      await assert.rejects(driver.acquire([claimOn('name')], newCall()), {
        name: 'StoreError',
        message: /locks\.db-wal was removed or replaced while it was open; close the database and open it again/,
      })
    }
  })
})

describe.concurrent('sqlite alone, failure 42: a link in the path', () => {
  it.each([
    ['its folder', 'current', 'current/locks.db'],
    ['the file', 'current.db', 'current.db'],
  ])('%s is retargeted: all continue in the new file, and locks held there are not granted', async (_, link, asked) => {
    await using context = createContext()
    for (const release of ['1', '2']) mkdirSync(`${context.folder}/${release}`)
    const target = (release: string) => (link === 'current' ? release : `${release}/locks.db`)
    const retarget = (release: string) => {
      symlinkSync(target(release), `${context.folder}/next`)
      renameSync(`${context.folder}/next`, `${context.folder}/${link}`)
    }
    for (const release of ['1', '2']) await (await openSqlite(`sqlite:${context.folder}/${release}/locks.db`)).close()
    retarget('1')
    const driver = await context.opened(openSqlite(`sqlite:${context.folder}/${asked}`))
    const held = claimOn('held')
    const { fencingToken } = await grantOf(driver, held)
    retarget('2')
    await using other = await startOther(`${context.folder}/${asked}`)
    assert.ok((await other.grant(claimOn('name'))) > fencingToken)
    assert.equal(await isGranted(driver, claimOn('name')), false)
    assert.deepEqual(await driver.renew([{ ...held, fencingToken, ttlMs: 60_000 }]), ['lost'])
    await grantOf(driver, claimOn('late'))
    assert.equal(await other.isGranted(claimOn('late')), false)
    // The file that was left behind is intact.
    const before = await context.opened(openSqlite(`sqlite:${context.folder}/1/locks.db`))
    assert.equal((await before.inspect({ lockName: 'held' })).leases[0]?.claimId, held.claimId)
  })

  it('the file moves with its link: its write-ahead log stays behind, and is no longer written', async () => {
    await using context = createContext()
    for (const release of ['1', '2']) mkdirSync(`${context.folder}/${release}`)
    symlinkSync('1', `${context.folder}/current`)
    const driver = await context.opened(openSqlite(`sqlite:${context.folder}/current/locks.db`))
    await grantOf(driver, claimOn('held'))
    renameSync(`${context.folder}/1/locks.db`, `${context.folder}/2/locks.db`)
    symlinkSync('2', `${context.folder}/next`)
    renameSync(`${context.folder}/next`, `${context.folder}/current`)
    await using other = await startOther(`${context.folder}/current/locks.db`)
    await other.grant(claimOn('name'))
    await notGranted(driver, claimOn('name'))
  })
})

/**
 * libsql closes a database only after all of its statements were garbage-collected. Until then SQLite gives a new
 * connection of the same process the index that was removed, so the driver refuses to work.
 */
async function notGranted(driver: Driver, claim: Claim): Promise<void> {
  if (!STAYS_OPEN) assert.equal(await isGranted(driver, claim), false)
  else await assert.rejects(isGranted(driver, claim), { name: 'StoreError', message: /was removed or replaced while/ })
}

/** A driver in another process, which opens the path now. */
async function startOther(path: string): Promise<Other> {
  const worker: Worker = await startWorker({ source: opens })
  await worker.call('open', `sqlite:${path}`)
  return {
    grant: async (claim) => Number(await worker.call('grant', claim)),
    isGranted: async (claim) => (await worker.call('isGranted', claim)) === true,
    [Symbol.asyncDispose]: () => worker.kill(),
  }
}

interface Other extends AsyncDisposable {
  grant(claim: Claim): Promise<number>
  isGranted(claim: Claim): Promise<boolean>
}

const opens = `
  import { openSqlite } from 'holdfast/drivers/sqlite'
  let driver
  expose({
    async open(url) { driver = await openSqlite(url) },
    async grant(claim) {
      const [answer] = await driver.acquire([claim])
      if (!answer.granted) throw new Error('refused')
      return answer.fencingToken
    },
    async isGranted(claim) { return (await driver.acquire([claim]))[0].granted },
  })
`

const opensBoth = `
  import { openSqlite } from 'holdfast/drivers/sqlite'
  const folder = process.argv.at(-1)
  const close = (driver) => driver.close().then(() => 'opened')
  const outcome = (path) => openSqlite('sqlite:' + path).then(close, (error) => error.message)
  const outside = await outcome(folder + '/locks.db')
  const inside = await outcome(folder + '/container/locks.db')
  console.log(JSON.stringify({ outside, inside }))
`
