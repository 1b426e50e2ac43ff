import assert from 'node:assert/strict'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { pathToFileURL } from 'node:url'
import { describe, it, vi } from 'vitest'
import type { Driver } from '../../../src/core/driver.ts'
import { StoreError } from '../../../src/core/errors.ts'
import { defaultPath, networkFileSystemOf } from '../../../src/drivers/sqlite/file.ts'
import { openSqlite } from '../../../src/drivers/sqlite.ts'
import { DistributedLock } from '../../../src/primitives/lock/any-store-lock.ts'
import { newCall } from '../../../src/testing/conformance/driver-calls.ts'
import { until } from '../../harness/processes.ts'
import { claimOn, createContext, grantOf, isGranted, type SqliteContext } from '../../harness/sqlite-context.ts'
import { startWorker } from '../../harness/worker.ts'

vi.mock('../../../src/drivers/sqlite/client.ts', async (original) =>
  (await import('../../harness/sqlite-client.ts')).chosenClient(original),
)

describe.concurrent('sqlite alone: a bad file is an error that says why, and never a free lock', () => {
  const untouched: [string, (context: SqliteContext) => Promise<void>, RegExp][] = [
    [
      'a text file',
      async ({ path }) => writeFileSync(path, 'not a database\n'.repeat(1_000)),
      /locks\.db: it is not an SQLite database; choose another path/,
    ],
    ['a short text file', async ({ path }) => writeFileSync(path, 'hello'), /it is not an SQLite database/],
    [
      'a database of another program',
      async (context) => {
        ;(await context.database()).exec('CREATE TABLE customers (name TEXT)')
      },
      /locks\.db is a database of another program; choose another path/,
    ],
    [
      'an empty database that another program has marked as its own',
      async (context) => {
        ;(await context.database()).exec('PRAGMA application_id = 7')
      },
      /is a database of another program/,
    ],
    [
      'a database of a newer format',
      async (context) => {
        await (await openSqlite(`sqlite:${context.path}`)).close()
        ;(await context.database()).exec('UPDATE holdfast_format SET version = 2')
      },
      /has format 2, and this version of Holdfast knows 1; upgrade Holdfast/,
    ],
  ]
  it.each(untouched)('%s is refused and left as it was', async (_, prepare, message) => {
    await using context = createContext()
    await prepare(context)
    const before = readFileSync(context.path)
    await refuses(context.path, message)
    assert.deepEqual(readFileSync(context.path), before)
  })

  it('a file with any damaged page is refused', async () => {
    await using context = createContext()
    const whole = await fileWithLeases(context)
    for (let page = 1; page * PAGE_BYTES < whole.length; page += 1) {
      const damaged = Buffer.from(whole)
      damaged.fill(0xab, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
      const path = `${context.folder}/damaged-${page}.db`
      writeFileSync(path, damaged)
      // Damage to a page that a claim does not need may go unnoticed. But a held lock must not be free.
      await using lock = new DistributedLock({ url: `sqlite:${path}` })
      const answer = await lock.acquire('name 100', { blocking: false }).catch((error: unknown) => error)
      if (answer instanceof Error) {
        assert.ok(answer instanceof StoreError)
        assert.match(answer.message, /it is damaged; end all processes that use it, then delete it/)
      } else assert.equal((answer as { acquired: boolean }).acquired, false)
    }
  })

  it('a truncated file is refused', async () => {
    await using context = createContext()
    const whole = await fileWithLeases(context)
    const path = `${context.folder}/half.db`
    writeFileSync(path, whole.subarray(0, whole.length / 2))
    await refuses(path, /half\.db: (it is damaged|the disk failed)/, 'name 100')
  })

  it('a folder in place of the file is refused', async () => {
    await using context = createContext()
    mkdirSync(context.path)
    await refuses(context.path, /locks\.db: it cannot be opened/)
  })

  it('a folder that cannot be created is refused', async () => {
    await refuses('/proc/holdfast/locks.db', /the folder \/proc\/holdfast for the lock file cannot be created: ENOENT/)
  })

  it('a database in memory is refused, because it excludes no other process', async () => {
    await refuses(':memory:', /in memory excludes no other process; use memory: for locks/)
    assert.equal(existsSync(':memory:'), false)
  })

  it('a folder or a file that this user may not write to is refused', async () => {
    await using context = createContext()
    await (await openSqlite(`sqlite:${context.path}`)).close()
    chmodSync(context.path, 0o444)
    chmodSync(context.folder, 0o555)
    await using worker = await startWorker({ source: asNobody })
    await worker.call('dropPrivileges')
    const newFile = (await worker.call('outcome', `sqlite:${context.folder}/new.db`)) as Outcome
    assert.equal(newFile.code, 'STORE_UNAVAILABLE')
    assert.match(newFile.message, /new\.db cannot be created: EACCES/)
    const oldFile = (await worker.call('outcome', `sqlite:${context.path}`)) as Outcome
    assert.equal(oldFile.code, 'STORE_UNAVAILABLE')
    assert.match(oldFile.message, /locks\.db: (this user cannot write to it|it cannot be opened)/)
  })
})

describe.concurrent('sqlite alone: the file belongs to this user', () => {
  it('the default is in the user’s state folder', () => {
    assert.equal(defaultPath({ XDG_STATE_HOME: '/state' }, 'linux'), '/state/holdfast/locks.db')
    assert.equal(defaultPath({}, 'linux'), `${homedir()}/.local/state/holdfast/locks.db`)
    assert.equal(defaultPath({}, 'darwin'), `${homedir()}/Library/Application Support/holdfast/locks.db`)
    assert.equal(defaultPath({ LOCALAPPDATA: '/local' }, 'win32'), '/local/holdfast/locks.db')
  })

  it('a relative XDG_STATE_HOME is ignored, because every working directory would have its own locks', () => {
    for (const state of ['state', './state', '../state', '']) {
      assert.equal(defaultPath({ XDG_STATE_HOME: state }, 'linux'), `${homedir()}/.local/state/holdfast/locks.db`)
    }
  })

  it('folder and file are private to this user, and so are the files beside it', async () => {
    await using context = createContext()
    const worker = await startWorker({ source: withDefault }, { env: { HOME: context.folder, XDG_STATE_HOME: '' } })
    await using _ = worker
    await worker.call('acquire', 'name')
    const folder = `${context.folder}/.local/state/holdfast`
    for (const made of [`${context.folder}/.local`, folder]) assert.equal(statSync(made).mode & 0o777, 0o700)
    for (const suffix of ['', '-wal', '-shm']) {
      assert.equal(statSync(`${folder}/locks.db${suffix}`).mode & 0o777, 0o600)
    }
  })

  it('an existing file keeps its permissions: a team may share it', async () => {
    await using context = createContext()
    writeFileSync(context.path, '')
    chmodSync(context.path, 0o660)
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await grantOf(driver, claimOn('name'))
    for (const suffix of ['', '-wal', '-shm']) assert.equal(statSync(`${context.path}${suffix}`).mode & 0o777, 0o660)
  })

  it('a path with spaces, question marks and percent signs is one file in every spelling', async () => {
    await using context = createContext()
    const path = `${context.folder}/a b?mode=memory#c%20d.db`
    const encoded = pathToFileURL(path).pathname
    const urls = [`sqlite:${encoded}`, `sqlite://${encoded}`, `sqlite:${encoded.replaceAll('%20', ' ')}`]
    const [first, ...others] = await Promise.all(urls.map((url) => context.opened(openSqlite(url))))
    assert.ok(first)
    await grantOf(first, claimOn('name'))
    for (const other of others) assert.equal(await isGranted(other, claimOn('name')), false)
    assert.ok(existsSync(path))
    const { args } = first.extensions?.reopen ?? { args: [] }
    const reopened = await context.opened(openSqlite(args[0] as string))
    assert.equal(await isGranted(reopened, claimOn('name')), false)
  })
})

describe.concurrent('sqlite alone: a file that is removed or replaced while it is open', () => {
  const ways: [string, (context: SqliteContext) => Promise<void>][] = [
    [
      'removed with the files beside it',
      async ({ path }) => {
        for (const suffix of ['-shm', '-wal', '']) rmSync(`${path}${suffix}`, { force: true })
      },
    ],
    ['removed with its folder', async ({ folder }) => rmSync(folder, { recursive: true })],
    [
      'replaced by another lock file',
      async ({ path, folder, database }) => {
        const [other, copy] = [`${folder}/other.db`, `${folder}/copy.db`]
        await (await openSqlite(`sqlite:${other}`)).close()
        // All data in one file, which no process has open.
        ;(await database(other)).exec(`VACUUM INTO '${copy}'`)
        for (const suffix of ['-shm', '-wal']) rmSync(`${path}${suffix}`, { force: true })
        renameSync(copy, path)
      },
    ],
  ]
  it.each(ways)('%s: leases are lost, all drivers continue in the new file, and tokens rise', async (_, remove) => {
    await using context = createContext()
    const open = (): Promise<Driver> => context.opened(openSqlite(`sqlite:${context.path}`))
    const [a, b] = [await open(), await open()]
    const [held, rival, late] = [claimOn('name'), claimOn('name'), claimOn('name')]
    const { fencingToken } = await grantOf(a, held)
    await remove(context)
    const next = await grantOf(b, rival)
    assert.ok(next.fencingToken > fencingToken)
    assert.deepEqual(await a.renew([{ ...held, fencingToken }]), ['lost'])
    assert.deepEqual(await a.release([{ ...held, fencingToken }]), [false])
    // Three drivers, one of them just opened, are on one file again.
    for (const driver of [a, await open()]) assert.equal(await isGranted(driver, late), false)
    assert.equal((await a.inspect({ lockName: 'name' })).leases[0]?.claimId, rival.claimId)
  })

  it('a waiter is woken in the new file', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await using lock = new DistributedLock({ url: `sqlite:${context.path}` })
    await grantOf(driver, claimOn('name'))
    const waiting = lock.acquire('name', { blocking: true })
    await until(async () => (await driver.inspect({ lockName: 'name' })).waiters.length === 1, {
      timeoutMs: 10_000,
      failure: () => 'there was no waiter',
    })
    for (const suffix of ['-shm', '-wal', '']) rmSync(`${context.path}${suffix}`)
    assert.ok((await waiting).acquired)
  })

  it('replaced by another kind of file: an error, and no grant', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    await grantOf(driver, claimOn('name'))
    writeFileSync(`${context.folder}/text`, 'no database\n'.repeat(100))
    for (const suffix of ['-shm', '-wal']) rmSync(`${context.path}${suffix}`)
    renameSync(`${context.folder}/text`, context.path)
    for (let tries = 0; tries < 3; tries += 1) {
      await assert.rejects(driver.acquire([claimOn('other')], newCall()), {
        name: 'StoreError',
        message: /not an SQLite database/,
      })
    }
    rmSync(context.path)
    assert.equal(await isGranted(driver, claimOn('other')), true)
  })
})

describe('sqlite alone: the write-ahead log', () => {
  it('is cut to 4 MB again after another program kept it from being emptied', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    const megabytes = (): number => statSync(`${context.path}-wal`).size / 1_024 ** 2
    // Every transaction writes at least one page, even for a small change.
    const work = async (): Promise<void> => {
      const claim = claimOn('name')
      await driver.acquire([claim], newCall())
      await driver.release([claim])
    }
    const reader = await context.database()
    reader.exec('BEGIN')
    reader.prepare('SELECT * FROM holdfast_format').all()
    for (let rounds = 0; megabytes() < 6; rounds += 1) {
      assert.ok(rounds < 2_000, `${megabytes()} MB`)
      await work()
    }
    reader.exec('COMMIT')
    for (let round = 0; round < 3; round += 1) await work()
    assert.ok(megabytes() < 5, `${megabytes()} MB`)
  })
})

describe('sqlite alone: a network share is refused, from Linux’s table of mounts', () => {
  const table = [
    '23 28 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw',
    '28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard',
    '97 28 0:45 / /shared rw,relatime shared:50 - nfs4 server:/export/shared rw,vers=4.2,rsize=1048576,hard,proto=tcp',
    '98 97 254:3 / /shared/local rw,relatime - xfs /dev/vdb1 rw,attr2',
    '99 28 0:46 / /mnt/team\\040share rw,relatime shared:52 master:3 - cifs //server/team\\040share rw,vers=3.1.1',
    '100 28 0:47 / /mnt/over rw - nfs server:/old rw',
    '101 100 0:48 / /mnt/over rw - tmpfs tmpfs rw,size=64k',
    '102 28 0:49 / /mnt/back\\134slash rw - fuse.sshfs me@host: rw,user_id=0',
    '103 28 0:50 / /mnt/c rw - 9p C:\\134 rw,aname=drvfs',
    '104 28 0:51 / /mnt/host rw - virtiofs host rw',
    '105 28 0:52 / /media/sf rw - vboxsf sf rw',
    '106 28 0:53 / /mnt/bucket rw - fuse.some-cloud bucket rw',
    '107 28 0:54 / /mnt/plain rw - fuse program rw',
    '108 28 0:55 / /mnt/container rw - fuse.fuse-overlayfs fuse-overlayfs rw',
    '109 28 8:17 / /mnt/stick rw - fuseblk /dev/sdb1 rw',
    '110 28 0:56 /locks /mnt/file.db rw - nfs4 server:/export rw',
    '',
  ].join('\n')
  it.each<[string, string | undefined, string]>([
    ['/var/lib/app', undefined, 'the root’s own file system'],
    ['/shared', 'nfs4', 'the mount’s own folder'],
    ['/shared/ann/.local/state', 'nfs4', 'below a mount'],
    ['/shared/local/ann', undefined, 'a local disk mounted within a share'],
    ['/sharedly', undefined, 'a name that only begins alike'],
    ['/mnt/team share/locks', 'cifs', 'a space in the path, which the table writes as \\040'],
    ['/mnt/over/locks', undefined, 'a later mount hides an earlier one on the same place'],
    ['/mnt/back\\slash', 'fuse.sshfs', 'a backslash in the path'],
    ['/mnt/c/Users/ann', '9p', 'the disk of a virtual machine’s host, as in WSL'],
    ['/mnt/host/locks', 'virtiofs', 'the same in another way'],
    ['/media/sf/locks', 'vboxsf', 'and in VirtualBox'],
    ['/mnt/bucket/locks', 'fuse.some-cloud', 'a program of which nothing is known'],
    ['/mnt/plain/locks', 'fuse', 'one that does not say its name'],
    ['/mnt/container/locks', undefined, 'a program that works on this machine’s own disk'],
    ['/mnt/stick/locks', undefined, 'a program that works on a disk of its own'],
    ['/mnt/file.db', 'nfs4', 'a file of a share that is mounted alone'],
  ])('%s: %s (%s)', (folder, type) => {
    assert.equal(networkFileSystemOf(folder, table), type)
  })

  it('the table of this machine can be read', () => {
    assert.equal(networkFileSystemOf('/', readFileSync('/proc/self/mountinfo', 'utf8')), undefined)
  })

  it('a link to the file leads to the same locks', async () => {
    await using context = createContext()
    const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
    symlinkSync(context.path, `${context.folder}/link.db`)
    const linked = await context.opened(openSqlite(`sqlite:${context.folder}/link.db`))
    await grantOf(driver, claimOn('name'))
    assert.equal(await isGranted(linked, claimOn('name')), false)
  })
})

/** Both the driver and a lock on it report only that the store is unavailable. */
async function refuses(path: string, message: RegExp, lockName = 'name'): Promise<void> {
  const opening = openSqlite(`sqlite:${path}`).then(async (driver) => {
    try {
      return await driver.acquire([claimOn(lockName)], newCall())
    } finally {
      await driver.close()
    }
  })
  await assert.rejects(opening, { name: 'StoreError', message })
  await using lock = new DistributedLock({ url: `sqlite:${path}` })
  await assert.rejects(lock.acquire(lockName, { blocking: false }), { code: 'STORE_UNAVAILABLE', message })
}

/** A lock file with 200 leases, without a write-ahead log beside it. */
async function fileWithLeases(context: SqliteContext): Promise<Buffer> {
  const driver = await context.opened(openSqlite(`sqlite:${context.path}`))
  await driver.acquire(
    Array.from({ length: 200 }, (_, index) => claimOn(`name ${index}`)),
    newCall(),
  )
  const copy = `${context.folder}/copy.db`
  ;(await context.database()).exec(`VACUUM INTO '${copy}'`)
  return readFileSync(copy)
}

interface Outcome {
  code: string
  message: string
}

/** Root may write everywhere, so the worker changes to another user after it has loaded its modules. */
const asNobody = `
  import { mkdtempSync, rmSync } from 'node:fs'
  import { DistributedLock } from 'holdfast'
  async function outcome(url) {
    const lock = new DistributedLock({ url })
    try {
      return await lock.acquire('name', { blocking: false })
    } catch ({ code, message }) {
      return { code, message }
    } finally {
      await lock.close()
    }
  }
  expose({
    outcome,
    async dropPrivileges() {
      const folder = mkdtempSync('/tmp/holdfast-other-user-')
      await outcome('sqlite:' + folder + '/locks.db')
      rmSync(folder, { recursive: true })
      if (process.getuid() !== 0) return
      process.setgroups([])
      process.setgid(65534)
      process.setuid(65534)
    },
  })
`

const withDefault = `
  import { getDistributedLock } from 'holdfast'
  delete process.env.HOLDFAST_URL
  delete process.env.XDG_STATE_HOME
  expose({ acquire: async (name) => (await getDistributedLock().acquire(name)).acquired })
`

const PAGE_BYTES = 4_096
