import { execFile } from 'node:child_process'
import { cpSync, existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Folder, makeFolder } from '../harness/folders.ts'
import { assertPython, python } from '../harness/python.ts'

const root = join(import.meta.dirname, '../..')
const source = join(root, 'python')

beforeAll(assertPython)

// By the types of the oldest one, a name that it does not have is an error, too.
test.each(['3.11', '3.12'])(
  'the client has no type errors in strict mode for Python %s',
  async (version) => {
    await run(['-m', 'mypy', '--python-version', version, '--cache-dir', join(root, '.cache/mypy')], source)
  },
  180_000,
)

describe('the Python package', () => {
  let folder: Folder
  /** The files of the wheel, unpacked as an installation puts them into site-packages. */
  let installed: string
  /** What the sdist contains: `size name` for each file, and `link name` for a link. */
  let sdist: string[]

  beforeAll(async () => {
    folder = makeFolder('wheel')
    // A copy of what a checkout has, with its links: a build writes beside the sources.
    for (const each of ['python', 'protocol', 'LICENSE']) {
      const tools = /[\\/](?:\.\w+_cache|\.hypothesis|__pycache__|build|dist|\w+\.egg-info)$/
      cpSync(join(root, each), join(folder.path, each), {
        recursive: true,
        verbatimSymlinks: true,
        filter: (path) => !tools.test(path),
      })
    }
    const out = join(folder.path, 'out')
    // Builds the sdist, and the wheel from what the sdist contains.
    await run(['-m', 'build', '--no-isolation', '--outdir', out, join(folder.path, 'python')], folder.path)
    const files = readdirSync(out)
    const [wheel, archive] = [/-py3-none-any\.whl$/, /\.tar\.gz$/].map((end) => files.find((each) => end.test(each)))
    expect([wheel, archive], files.join()).not.toContain(undefined)
    installed = join(folder.path, 'site')
    await run(['-m', 'zipfile', '-e', join(out, `${wheel}`), installed], folder.path)
    sdist = (await run(['-c', LIST_SDIST, join(out, `${archive}`)], folder.path)).trim().split('\n')
  }, 180_000)

  afterAll(() => folder?.remove())

  test('has the version of the npm package, and no required dependency', () => {
    const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
    const name = readdirSync(installed).find((each) => each.endsWith('.dist-info'))
    const metadata = readFileSync(join(installed, `${name}`, 'METADATA'), 'utf8')
    expect(metadata).toContain(`\nVersion: ${manifest.version}\n`)
    expect(metadata).toContain('\nRequires-Python: >=3.11\n')
    expect(metadata.match(/^Requires-Dist: (?!.*extra == ).*/gm)).toBeNull()
    expect(metadata.match(/^Provides-Extra: .*/gm)?.map((line) => line.slice(16))).toEqual(
      expect.arrayContaining(['asyncpg', 'psycopg', 'redis', 'sqlalchemy']),
    )
  })

  test('contains every module, py.typed and every file of protocol/, and nothing else', () => {
    const modules = filesBelow(join(source, 'src/holdfast')).filter((file) =>
      /^(?!protocol).*(?:\.py|py\.typed)$/.test(file),
    )
    const expected = [...modules, ...filesBelow(join(root, 'protocol')).map((file) => `protocol/${file}`)].sort()
    expect(expected).toContain('py.typed')
    expect(filesBelow(join(installed, 'holdfast')).sort()).toEqual(expected)
    expect(readdirSync(installed).filter((each) => !each.endsWith('.dist-info'))).toEqual(['holdfast'])
  })

  test('is built from an sdist with the files themselves, not links', () => {
    expect(sdist.filter((line) => line.startsWith('link '))).toEqual([])
    for (const file of filesBelow(join(root, 'protocol'))) {
      const size = readFileSync(join(root, 'protocol', file)).length
      expect(sdist).toContainEqual(expect.stringMatching(`^${size} [^/]+/src/holdfast/protocol/${file}$`))
    }
  })

  test('is not built without protocol/: a warning would be overlooked, and the package could not lock', async () => {
    const lacking = join(folder.path, 'lacking')
    // What a download of the folder python/ alone has: the link leads nowhere.
    cpSync(join(folder.path, 'python'), lacking, { recursive: true, verbatimSymlinks: true })
    rmSync(join(lacking, 'src/holdfast/protocol'), { recursive: true })
    const builds = ['--wheel', '--sdist'].map((kind) => run(['-m', 'build', '--no-isolation', kind, lacking], lacking))
    for (const build of await Promise.allSettled(builds)) {
      expect(build.status).toBe('rejected')
      expect(String((build as PromiseRejectedResult).reason)).toContain('src/holdfast/protocol lacks README.md')
    }
    expect(readdirSync(lacking)).not.toContain('dist')
  })

  test('runs the start of its README where nothing else is installed', async () => {
    const readme = readFileSync(join(source, 'README.md'), 'utf8')
    const [, start = ''] = /^```python\n([\s\S]*?)^```/m.exec(readme) ?? []
    expect(start).toContain('from holdfast import')
    // Neither the user's packages nor Debian's: the library needs only the standard library.
    const importing = `import sys; sys.path.insert(0, ${JSON.stringify(installed)})\n${start}`
    expect(await run(['-I', '-S', '-c', importing], folder.path)).toBe('only one process is here True\n')
  })
})

const LIST_SDIST = `
import sys, tarfile
for each in tarfile.open(sys.argv[1]):
    if each.issym() or each.islnk(): print("link", each.name)
    elif each.isfile(): print(each.size, each.name)
`

/** Fails with all that was printed. */
async function run(args: string[], cwd: string): Promise<string> {
  const env = { ...process.env, PYTHONDONTWRITEBYTECODE: '1', PYTHONPATH: '' }
  const options = { cwd, env, timeout: 170_000, maxBuffer: 64 << 20 }
  try {
    return (await promisify(execFile)(python, args, options)).stdout
  } catch (error) {
    const { stdout, stderr, message } = error as { stdout: string; stderr: string; message: string }
    throw new Error(`${message}\n${stdout}\n${stderr}`)
  }
}

function filesBelow(folder: string): string[] {
  expect(existsSync(folder), folder).toBe(true)
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes('__pycache__'))
    .map((entry) => join(entry.parentPath, entry.name).slice(folder.length + 1))
}
