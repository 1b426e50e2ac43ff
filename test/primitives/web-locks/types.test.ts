import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { tsc } from '../../../scripts/support/command.mjs'

/** Code for the browser, compiled with the browser's own types. Only one name changes. */
const program = `
  import { Lock, LockManager as Manager, WebLocks } from 'holdfast/web-locks'

  async function forTheBrowser(locks: LockManager): Promise<string> {
    const value: number = await locks.request('name', async (lock) => lock!.name.length)
    const mode = 'shared'
    const shared: 'shared' | 'exclusive' | undefined = await locks.request('name', { mode }, (lock) => lock?.mode)
    const signal: AbortSignal = AbortSignal.timeout(1000)
    const options: LockOptions = { mode: 'exclusive', signal }
    await locks.request('name', options, async (lock: globalThis.Lock | null) => {})
    const refused = await locks.request('name', { ifAvailable: true }, async (lock) => lock === null)
    const { held = [], pending = [] }: LockManagerSnapshot = await locks.query()
    const infos: LockInfo[] = [...held, ...pending]
    const shown = infos.map(({ name, mode, clientId }) => \`\${name} \${mode} \${clientId}\`)
    return \`\${value} \${shared} \${refused} \${shown}\`
  }

  await using web = new WebLocks({ url: 'memory:' })
  const ours = web.locks
  const theirs: LockManager = ours
  const lock: globalThis.Lock = {} as Lock
  void forTheBrowser(theirs)
  void forTheBrowser(navigator.locks)
  void [lock, {} as Manager satisfies LockManager]

  // The same with our own types.
  const length: number = await ours.request('name', async (lock) => lock!.name.length)
  await ours.request('name', {}, (lock) => lock?.signal.aborted === false && lock.fencingToken > length)
  // @ts-expect-error a mode is one of two words
  void ours.request('name', { mode: 'upgradable' }, () => {})
  // @ts-expect-error WebLocks makes one
  new Manager({})
`

let folder: string

beforeAll(() => {
  const cache = join(import.meta.dirname, '../../../.cache')
  mkdirSync(cache, { recursive: true })
  folder = mkdtempSync(join(cache, 'web-locks-types-'))
  writeFileSync(join(folder, 'program.mts'), program)
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('the types of holdfast/web-locks', () => {
  const strict = [
    '--ignoreConfig',
    '--strict',
    '--exactOptionalPropertyTypes',
    '--noEmit',
    '--target',
    'es2022',
    '--module',
    'nodenext',
  ]

  it('accept code that was written for navigator.locks', async () => {
    const lib = ['--lib', 'es2023,esnext.disposable,dom']
    for (const types of [
      ['--types', 'node', '--skipLibCheck'],
      ['--types', '', '--skipLibCheck'],
    ]) {
      const { code, output } = await tsc([...strict, ...lib, ...types, join(folder, 'program.mts')])
      expect(output).toBe('')
      expect(code).toBe(0)
    }
  })
})
