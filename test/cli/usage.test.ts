import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { createStore, SLOW, type Store } from '../harness/cli.ts'

const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
  version: string
}

describe.concurrent('wrong usage ends with 64, says what is wrong, and runs no command', SLOW, () => {
  /** COMMAND is replaced by a command that would create a file. */
  const wrong: [string, string[], RegExp][] = [
    ['no lock name', ['run', '--', 'COMMAND'], /run needs one lock name, but got 0/],
    ['two lock names', ['run', 'a', 'b', '--', 'COMMAND'], /run needs one lock name, but got 2/],
    ['an empty lock name', ['run', '', '--', 'COMMAND'], /lockName must be a string of 1 to 255 characters/],
    ['a lock name that is too long', ['run', 'x'.repeat(256), '--', 'COMMAND'], /lockName must be/],
    ['no command', ['run', 'job'], /run needs a command after --/],
    ['no command after --', ['run', 'job', '--'], /run needs a command after --/],
    ['an empty command', ['run', 'job', '--', '', 'x'], /run needs a command after --/],
    ['a command without --', ['run', 'job', 'touch'], /run needs a command after --/],
    [
      'a TTL that is not a number',
      ['run', 'job', '--ttl', 'soon', '--', 'COMMAND'],
      /--ttl must be a number, but is "soon"/,
    ],
    ['an empty TTL', ['run', 'job', '--ttl', '', '--', 'COMMAND'], /--ttl must be a number, but is ""/],
    ['a TTL of 0', ['run', 'job', '--ttl', '0', '--', 'COMMAND'], /--ttl must be at least 0.5, but is 0: .* sixth/],
    ['a negative TTL', ['run', 'job', '--ttl=-1', '--', 'COMMAND'], /--ttl must be .* but is -1/],
    ['an infinite TTL', ['run', 'job', '--ttl', 'Infinity', '--', 'COMMAND'], /--ttl must be/],
    [
      'a wait that is not a number',
      ['run', 'job', '--wait', '1 minute', '--', 'COMMAND'],
      /--wait must be a number, but is/,
    ],
    ['a negative wait', ['run', 'job', '--wait', '-5', '--', 'COMMAND'], /'--wait'/],
    ['--wait with --no-wait', ['run', 'job', '--wait', '5', '--no-wait', '--', 'COMMAND'], /exclude each other/],
    ['a bad --min-hold', ['run', 'job', '--min-hold', 'x', '--', 'COMMAND'], /--min-hold must be a number, but is "x"/],
    ['a bad --max-hold', ['run', 'job', '--max-hold', '0', '--', 'COMMAND'], /--max-hold must be/],
    ['an exit code above 255', ['run', 'job', '-E', '256', '--', 'COMMAND'], /-E must be/],
    ['an exit code that is not an integer', ['run', 'job', '-E', '1.5', '--', 'COMMAND'], /-E must be/],
    ['an unknown option', ['run', 'job', '--tll', '5', '--', 'COMMAND'], /Unknown option '--tll'/],
    ['an unknown store', ['run', 'job', '--url', 'floppy:a', '--', 'COMMAND'], /url must be .* "floppy:…"/],
    ['a path without a scheme', ['run', 'job', '--url', '/tmp/locks.db', '--', 'COMMAND'], /url must be .* sqlite:/],
    [
      'an unknown command',
      ['walk', 'job'],
      /unknown command "walk"; the commands are run, ls, top, show, wait, force-release, elect, limit/,
    ],
    ['an unknown option of ls', ['ls', '--jsno'], /Unknown option '--jsno'/],
    ['two prefixes', ['ls', 'a', 'b'], /ls takes at most one prefix, but got 2/],
    ['an unknown order', ['ls', '--sort', 'size'], /--sort must be age, waiters or name, but is "size"/],
    ['an age that is no time', ['ls', '--held-longer-than', 'long'], /must be a time such as 90, 90s, 5m/],
    ['two forms of output', ['ls', '--json', '--wide'], /exclude each other/],
    ['top without a terminal', ['top'], /top needs a terminal. Where there is none, use holdfast ls/],
    [
      'an unknown order of top',
      ['top', '--sort', 'size'],
      /--sort must be waiters, longest, age, handoffs, name, but is/,
    ],
    ['looks that are too frequent', ['top', '--every', '0.01s'], /--every must be at least 0.1s, but is "0.01s"/],
    ['a store where the prefix belongs', ['top', 'redis://127.0.0.1'], /pass the store with --url: top --url URL/],
    ['no name to show', ['show'], /show needs one lock name, but got 0/],
    ['two names to wait for', ['wait', 'a', 'b'], /wait needs one lock name, but got 2/],
    ['force-release without a reason', ['force-release', 'a', '--yes'], /force-release needs --reason TEXT/],
    [
      'force-release with an empty reason',
      ['force-release', 'a', '--yes', '--reason', ' '],
      /force-release needs --reason TEXT/,
    ],
    ['an election without a command', ['elect', 'a'], /elect needs a command after --/],
    ['a limit without a rate', ['limit', 'a', '--', 'COMMAND'], /limit needs --rate, such as 10\/s/],
    ['a rate that is none', ['limit', 'a', '--rate', '10', '--', 'COMMAND'], /--rate must be such as 10\/s/],
    ['a rate of 0', ['limit', 'a', '--rate', '0/s', '--', 'COMMAND'], /--rate must be/],
    ['an unknown shell', ['completion', 'tcsh'], /completion needs one shell: bash, zsh or fish/],
    ['an unknown store of ls', ['ls', '--url', 'floppy:a'], /url must be/],
  ]
  test.each(wrong)('%s', async (_, args, message) => {
    await using store = createStore()
    const trace = `${store.folder}/trace`
    const { code, stdout, stderr } = await store.run(
      args.flatMap((arg) => (arg === 'COMMAND' ? ['touch', trace] : [arg])),
    )
    expect(stderr).toMatch(message)
    // A sentence and a hint: neither a stack trace nor parseArgs's advice on quoting.
    expect(stderr).toMatch(/^holdfast: [^\n]+\nTry: holdfast --help\n$/)
    expect({ code, stdout }).toEqual({ code: 64, stdout: '' })
    expect(existsSync(trace)).toBe(false)
    expect(existsSync(store.path)).toBe(false)
  })
})

describe.concurrent('a store that is not available ends with 69, says why, and runs no command', SLOW, () => {
  const unavailable: [string, (store: Store) => string, RegExp][] = [
    [
      'a file that is not a database',
      ({ folder }) => {
        writeFileSync(`${folder}/notes.txt`, 'no database\n'.repeat(100))
        return `${folder}/notes.txt`
      },
      /notes.txt: it is not an SQLite database; choose another path/,
    ],
    [
      'a folder that cannot be created',
      ({ folder }) => {
        writeFileSync(`${folder}/file`, '')
        return `${folder}/file/below/locks.db`
      },
      /the folder .*file\/below for the lock file cannot be created/,
    ],
    [
      'a folder in place of a file',
      ({ folder }) => {
        mkdirSync(`${folder}/locks`)
        return `${folder}/locks`
      },
      /locks: .*cannot be opened/,
    ],
  ]
  test.each(unavailable)('%s', async (_, prepare, message) => {
    await using store = createStore()
    const trace = `${store.folder}/trace`
    const url = `sqlite:${prepare(store)}`
    for (const args of [
      ['run', 'job', '--no-wait', '--url', url, '--', 'touch', trace],
      ['ls', '--url', url],
    ]) {
      const { code, stdout, stderr } = await store.run(args)
      expect(stderr).toMatch(message)
      expect(stderr).toMatch(/^holdfast: [^\n]+\n$/)
      expect({ code, stdout }).toEqual({ code: 69, stdout: '' })
    }
    expect(existsSync(trace)).toBe(false)
  })
})

describe.concurrent('which store', SLOW, () => {
  test('without a URL, a file in the user’s state folder that no other user may read', async () => {
    await using store = createStore()
    const env = { HOLDFAST_URL: undefined, XDG_STATE_HOME: `${store.folder}/state` }
    expect(await store.run(['run', 'job', '--min-hold', '60', '--', 'true'], env)).toMatchObject({
      code: 0,
      stderr: '',
    })
    expect(await store.run(['run', 'job', '--no-wait', '--', 'true'], env)).toMatchObject({ code: 75 })
    const folder = `${store.folder}/state/holdfast`
    expect([statSync(folder).mode & 0o777, statSync(`${folder}/locks.db`).mode & 0o777]).toEqual([0o700, 0o600])
    expect(existsSync(store.path)).toBe(false)
  })

  test('--url has precedence over HOLDFAST_URL', async () => {
    await using store = createStore()
    expect(await store.run(['run', 'job', '--url', `sqlite:${store.folder}/other.db`, '--', 'true'])).toMatchObject({
      code: 0,
    })
    expect([existsSync(`${store.folder}/other.db`), existsSync(store.path)]).toEqual([true, false])
  })
})

describe.concurrent('help and version', SLOW, () => {
  test.each([[[]], [['--help']], [['-h']], [['help']], [['help', 'nonsense']]])(
    '%j shows the overview',
    async (args) => {
      await using store = createStore()
      const { code, stdout, stderr } = await store.run(args)
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' })
      for (const word of ['holdfast run NAME', 'holdfast ls', '--url', 'HOLDFAST_URL']) expect(stdout).toContain(word)
    },
  )

  test.each([
    [['help', 'run']],
    [['run', '--help']],
    [['run', 'job', '-h']],
    [['run', 'job', '--help', '--', 'touch']],
  ])('%j shows every option and exit code, with examples', async (args) => {
    await using store = createStore()
    const { code, stdout } = await store.run(args)
    expect(code).toBe(0)
    const options = [
      '--url',
      '--ttl',
      '--wait',
      '--no-wait',
      '--shared',
      '--min-hold',
      '--max-hold',
      '--store-timeout',
      '-E',
    ]
    const rest = ['64', '69', '75', '76', '128', 'HOLDFAST_FENCING_TOKEN', 'Examples']
    expect([...options, ...rest].filter((word) => !stdout.includes(word))).toEqual([])
  })

  test('--help after -- is passed to the command', async () => {
    await using store = createStore()
    expect(await store.run(['run', 'job', '--', 'sh', '-c', 'echo "$1"', 'sh', '--help'])).toMatchObject({
      code: 0,
      stdout: '--help\n',
    })
  })

  test.each(['--version', '-V'])('%s shows the version of the package', async (option) => {
    await using store = createStore()
    expect(await store.run([option])).toEqual({ code: 0, stdout: `${version}\n`, stderr: '' })
  })
})
