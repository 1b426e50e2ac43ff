import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { staleTables } from '../scripts/capability-table.mjs'
import { failurePage } from '../scripts/failure-table.mjs'
import { stalePages } from '../scripts/reference.mjs'
import { run, tsc } from '../scripts/support/command.mjs'
import * as limits from '../src/core/limits.ts'

const root = join(import.meta.dirname, '..')

const pages = readdirSync(root, { withFileTypes: true })
  .flatMap((entry) => {
    if (entry.isFile()) return [entry.name]
    if (!['docs', 'examples', 'protocol'].includes(entry.name)) return []
    return readdirSync(join(root, entry.name), { recursive: true, encoding: 'utf8' }).map((file) =>
      join(entry.name, file),
    )
  })
  .filter((file) => file.endsWith('.md'))
  .sort()

/** The pages of folders that are not documentation. Their code is not compiled. */
const folderPages = ['src', 'test', 'chaos', 'bench', 'scripts'].flatMap((folder) =>
  readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.md') && !file.includes('node_modules'))
    .map((file) => join(folder, file)),
)

interface Block {
  readonly title: string
  readonly file: string
  readonly code: string
  /** False for a block marked `no-run`, which needs something that a test does not have, such as a server. */
  readonly runs: boolean
  /** The expected output of each `console.log`, in order: the comment behind it. */
  readonly says: readonly string[]
}

const blocks: Block[] = pages.flatMap((page) => {
  const text = read(page)
  return [...text.matchAll(/^```(?:ts|typescript)\b([^\n]*)\n([\s\S]*?)^```/gm)].map((match, index) => {
    const [, info = '', code = ''] = match
    const line = text.slice(0, match.index).split('\n').length
    return {
      title: `${page}:${line}`,
      file: `${page.replaceAll(/[^\w]/g, '-')}-${index + 1}`,
      code,
      runs: !info.includes('no-run'),
      says: [...code.matchAll(/console\.log\(.*\) \/\/ (.+)$/gm)].map(([, said = '']) => said),
    }
  })
})

/** The driver that docs/guides/writing-a-driver.md shows in full. */
const driverBlock = 'docs-guides-writing-a-driver-md-1'

let folder: string
let compilation: { code: number; output: string }

beforeAll(async () => {
  mkdirSync(join(root, '.cache'), { recursive: true })
  folder = mkdtempSync(join(root, '.cache/docs-'))
  // An `export` makes each block a module, so that names of different blocks do not collide.
  for (const { file, code } of blocks) writeFileSync(join(folder, `${file}.ts`), `${code}\nexport {}\n`)
  // The other blocks of that page import this file.
  copyFileSync(join(folder, `${driverBlock}.ts`), join(folder, 'map-driver.ts'))
  const compilerOptions = {
    noEmit: false,
    allowJs: false,
    noUnusedLocals: false,
    noUnusedParameters: false,
    rootDir: '.',
    outDir: 'out',
  }
  writeFileSync(
    join(folder, 'tsconfig.json'),
    JSON.stringify({ extends: '../../tsconfig.json', compilerOptions, include: ['*.ts'] }),
  )
  compilation = await tsc(['-p', folder])
})

afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe('the code in README and docs', () => {
  test('is found', () => {
    expect(blocks.length).toBeGreaterThan(5)
    expect(blocks.some(({ title }) => title.startsWith('README.md'))).toBe(true)
  })

  test.each(blocks.map((block) => [block.title, block] as const))('at %s compiles', (title, { file }) => {
    const errors = compilation.output.split('\n').filter((line) => line.includes(`${file}.ts(`))
    expect(errors, title).toEqual([])
  })

  test('compiles as a whole', () => {
    expect(compilation.output).toBe('')
    expect(compilation.code).toBe(0)
  })

  const running = blocks.filter(({ runs }) => runs).map((block) => [block.title, block] as const)
  test.concurrent.each(running)('at %s runs, and prints what its comments say', async (_, block) => {
    // Not the default file in the user's state folder.
    const env = { ...process.env, NO_COLOR: '1', HOLDFAST_URL: 'memory:' }
    const { code, stdout, output } = await run(process.execPath, [join(folder, 'out', `${block.file}.js`)], { env })
    expect(code, output).toBe(0)
    if (block.says.length > 0) expect(stdout.trimEnd().split('\n'), output).toEqual(block.says)
  })

  test('contains a driver that passes the conformance suite', async () => {
    const program = `
      import { after, before, describe, it } from 'node:test'
      import { driverConformance } from 'holdfast/testing'
      import { capabilities, createStore, mapDriver } from './${driverBlock}.js'
      const atOnce = { concurrency: 10 }
      const store = createStore()
      driverConformance({
        runner: { describe: (title, body) => describe(title, atOnce, body), it, beforeAll: before, afterAll: after },
        name: 'map',
        capabilities,
        open: async () => ({ driver: async () => mapDriver(store), close: async () => {} }),
      })`
    writeFileSync(join(folder, 'out/conformance.mjs'), program)
    const { code, output } = await run(process.execPath, [join(folder, 'out/conformance.mjs')])
    expect(Number(/^# pass (\d+)$/m.exec(output)?.[1])).toBeGreaterThan(100)
    expect(
      code,
      output
        .split('\n')
        .filter((line) => /^\s*not ok/.test(line))
        .join('\n'),
    ).toBe(0)
  })

  test('is marked no-run only where it has to be', () => {
    // The pages of the server drivers are excepted: the drivers' own tests and examples/ run what they show.
    const ours = blocks.filter(({ title }) => !/docs\/drivers\/(?:postgres|redis|redlock)/.test(title))
    expect(ours.filter(({ runs }) => !runs).length).toBeLessThanOrEqual(ours.length / 8)
  })
})

describe('links', () => {
  test.each([...pages, ...folderPages])('in %s lead somewhere', (page) => {
    expect(linksOf(page).filter((target) => !leadsSomewhere(page, target))).toEqual([])
  })

  test('of README and docs lead to files of the npm package', () => {
    const { files } = JSON.parse(read('package.json')) as { files: string[] }
    const published = [...files, 'README.md', 'LICENSE', 'package.json']
    const outside = pages
      .filter((page) => page === 'README.md' || page.startsWith('docs/'))
      // Tests and chaos are in the repository only, and these pages say so.
      .filter((page) => !['docs/failures.md', 'docs/evidence.md'].includes(page))
      .flatMap((page) => linksOf(page).map((target) => join(dirname(page), target.split('#')[0] || '.')))
      .filter((file) => !published.some((each) => file === each || file.startsWith(`${each}/`) || file === '.'))
    expect([...new Set(outside)]).toEqual([])
  })

  test('reach every page of docs from the README', () => {
    const reached = new Set<string>()
    const visit = (page: string): void => {
      if (reached.has(page)) return
      reached.add(page)
      for (const [, target = ''] of read(page).matchAll(/\]\(([^)#\s]+\.md)(?:#[^)]*)?\)/g)) {
        const next = join(dirname(page), target)
        if (!/^https?:/.test(target) && existsSync(join(root, next))) visit(next)
      }
    }
    visit('README.md')
    expect(pages.filter((page) => page.startsWith('docs/') && !reached.has(page))).toEqual([])
  })
})

describe('what the docs say of the code', () => {
  test('the capability tables match the drivers', async () => {
    expect((await staleTables()).map(({ file }) => `${file} is out of date: npm run capabilities`)).toEqual([])
  })

  test('every known failure has a test, and docs/failures.md links to it', () => {
    const { before, text, untested } = failurePage()
    expect(untested).toEqual([])
    expect(before === text || 'docs/failures.md is out of date: npm run failures').toBe(true)
  })

  test('the generated pages of docs/reference are what the declarations say', () => {
    expect(stalePages().map(({ file }) => `${file} is out of date: npm run reference`)).toEqual([])
  })

  test('every bound of src/core/limits.ts is in docs/reference/bounds.md, with its value', () => {
    const rows = [...read('docs/reference/bounds.md').matchAll(/^\| .*? \| `([A-Z_]+)` \| ([\d,]+)/gm)]
    const said = Object.fromEntries(rows.map(([, name, value = '']) => [name, Number(value.replaceAll(',', ''))]))
    expect(said).toEqual({ ...limits })
  })

  test('every event and every error code is on the page that explains it', () => {
    const errorPage = read('docs/reference/errors.md')
    const eventPage = read('docs/reference/events.md')
    const events = [...sourceOf('events.ts').matchAll(/^ {2}'(\w+)',$/gm)].map(([, event]) => event)
    const codes = [...sourceOf('errors.ts').matchAll(/readonly code = '(\w+)'/g)].map(([, code]) => code)
    expect(events.length).toBeGreaterThan(5)
    expect(codes.length).toBeGreaterThan(5)
    expect(events.filter((event) => !eventPage.includes(`\`${event}\``))).toEqual([])
    expect(codes.filter((code) => !errorPage.includes(`\nCode: \`${code}\`\n`))).toEqual([])
  })

  test('every code of doctor has a paragraph in docs/reference/doctor.md, and no other has', () => {
    const codes = [...read('src/doctor/finding.ts').matchAll(/^ {2}\| '([A-Z_]+)'/gm)].map(([, code]) => code)
    const paragraphs = [...read('docs/reference/doctor.md').matchAll(/^- \*\*([A-Z_]+)\*\*/gm)].map(([, code]) => code)
    expect(codes.length).toBeGreaterThan(15)
    expect(paragraphs.sort()).toEqual(codes.sort())
  })

  test('the runbooks lead to the pages that explain every code', () => {
    const pages = ['../reference/errors.md', '../reference/doctor.md', '../reference/cli.md#exit-codes']
    expect(linksOf('docs/guides/operations.md')).toEqual(expect.arrayContaining(pages))
  })

  test('the docs name only scripts that exist', () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> }
    const named = pages.flatMap((page) => [...read(page).matchAll(/npm run ([\w-]+)/g)].map(([, name = '']) => name))
    expect([...new Set(named)].filter((name) => scripts[name] === undefined)).toEqual([])
  })

  test('every development dependency has a reason in the decisions', () => {
    const { devDependencies } = JSON.parse(read('package.json')) as { devDependencies: Record<string, string> }
    const reasons = read('docs/decisions/0007-development-dependencies.md')
    expect(Object.keys(devDependencies).filter((name) => !reasons.includes(`\`${name}\``))).toEqual([])
  })

  test('.ci/run calls the test command of the README', () => {
    const command = 'npm ci && npm test'
    expect(read('README.md')).toContain(command)
    expect(read('.ci/run')).toContain(`\n${command}\n`)
  })
})

function read(file: string): string {
  return readFileSync(join(root, file), 'utf8')
}

function sourceOf(file: string): string {
  return read(join('src/core', file))
}

/** The targets of a page's links and images, except those on other hosts. */
function linksOf(page: string): string[] {
  const text = read(page)
    .replaceAll(/^```[\s\S]*?^```/gm, '')
    .replaceAll(/`[^`\n]*`/g, '')
  return [...text.matchAll(/\]\(([^)\s]+)\)/g)]
    .map(([, target = '']) => target)
    .filter((target) => !/^(?:https?|mailto):/.test(target))
}

function leadsSomewhere(page: string, target: string): boolean {
  const [path = '', anchor] = target.split('#')
  const file = path === '' ? page : join(dirname(page), path)
  if (!existsSync(join(root, file))) return false
  if (anchor === undefined || !file.endsWith('.md')) return true
  const headings = [...read(file).matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) => slugOf(heading))
  return headings.includes(anchor)
}

/** The anchor that code hosts make from a heading. */
function slugOf(heading: string): string {
  return heading
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(/\s/g, '-')
}
