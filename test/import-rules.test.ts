import { execFileSync } from 'node:child_process'
import { existsSync, lstatSync, readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { describe, expect, test } from 'vitest'

const root = join(import.meta.dirname, '..')

/**
 * The layers. A folder may always import from itself. `import type` counts like any other import: using a type is a
 * dependency, too.
 */
const rules: Record<string, { folder: RegExp; mayImport: RegExp }> = {
  'core/*.ts imports nothing but its like': { folder: /^core\/[^/]+$/, mayImport: /^core\/[^/]+$/ },
  'core/time imports core/*.ts': { folder: /^core\/time\//, mayImport: /^core\/(?:time\/|[^/]+$)/ },
  'core/store imports core/time': { folder: /^core\/store\//, mayImport: /^core\/(?:store\/|time\/|[^/]+$)/ },
  'core/lease imports core/store and core/time': {
    folder: /^core\/lease\//,
    mayImport: /^core\/(?:lease\/|store\/|time\/|[^/]+$)/,
  },
  'core/deadlock imports core/lease, core/store and core/time': {
    folder: /^core\/deadlock\//,
    mayImport: /^core\/(?:deadlock\/|lease\/|store\/|time\/|[^/]+$)/,
  },
  'core/claim imports the rest of core': { folder: /^core\/claim\//, mayImport: /^core\// },
  'connect.ts imports core': { folder: /^connect\.ts$/, mayImport: /^core\// },
  'primitives import core, and connect.ts': {
    folder: /^primitives\//,
    mayImport: /^(?:primitives\/|core\/|connect\.ts$)/,
  },
  'drivers/shared imports core': { folder: /^drivers\/shared\//, mayImport: /^(?:core|drivers\/shared)\// },
  ...Object.fromEntries(
    Object.entries({
      memory: [],
      sqlite: [],
      postgres: [],
      'postgres-advisory': ['postgres'],
      redis: [],
      redlock: ['redis'],
    }).map(([driver, others]) => {
      const folders = [driver, 'shared', ...others]
      const title = `the ${driver} driver imports core and ${folders.map((folder) => `drivers/${folder}/`).join(', ')}`
      const mayImport = new RegExp(`^(?:core|drivers/(?:${folders.join('|')}))/`)
      return [title, { folder: new RegExp(`^drivers/${driver}(?:\\.ts$|/)`), mayImport }]
    }),
  ),
  'testing imports core and primitives': { folder: /^testing\//, mayImport: /^(?:testing|core|primitives)\// },
  'telemetry imports core and primitives': { folder: /^telemetry\//, mayImport: /^(?:telemetry|core|primitives)\// },
  'integrations import core, primitives and the adapter to node:http': {
    folder: /^integrations\//,
    mayImport: /^(?:(?:integrations|core|primitives)\/|dashboard\/node-handler\.ts$)/,
  },
  'doctor imports core, primitives and drivers': {
    folder: /^doctor\//,
    mayImport: /^(?:doctor\/|core\/|primitives\/|drivers\/|connect\.ts$)/,
  },
  'dashboard imports core, primitives and connect': {
    folder: /^dashboard\/[^/]+$/,
    mayImport: /^(?:dashboard\/[^/]+$|core\/|primitives\/|connect\.ts$)/,
  },
  'the dashboard’s page imports what is sent to it': {
    folder: /^dashboard\/client\//,
    mayImport: /^dashboard\/(?:client\/|wire\.ts$)/,
  },
  'cli imports what is public, core, primitives, doctor and dashboard': {
    folder: /^cli\//,
    mayImport: /^(?:(?:cli|doctor|dashboard|core|primitives)\/|(?:index|connect|drivers\/[^/]+|testing\/index)\.ts$)/,
  },
  'lock.ts imports only core and primitives, so that bundles stay small': {
    folder: /^lock\.ts$/,
    mayImport: /^(?:core|primitives)\//,
  },
  'driver.ts imports core': { folder: /^driver\.ts$/, mayImport: /^core\// },
  'index.ts imports anything but drivers': {
    folder: /^index\.ts$/,
    mayImport: /^(?:core\/|primitives\/|connect\.ts$)/,
  },
}

describe('import rules', () => {
  test.each(Object.entries(rules))('%s', (_, { folder, mayImport }) => {
    const strays = imports
      .filter(({ from, to, dynamic }) => folder.test(from) && to.startsWith('.') && !isConnectOpening(from, dynamic))
      .map(({ from, to }) => ({ from, to: targetOf(from, to) }))
      .filter(({ to }) => !mayImport.test(to))
    expect(strays).toEqual([])
  })

  test('every file in src has a rule', () => {
    const free = sources.filter((file) => !Object.values(rules).some(({ folder }) => folder.test(file)))
    expect(free).toEqual([])
  })

  test('there are no import cycles, types included', () => {
    expect(importCycles()).toEqual([])
  })

  test('only drivers and the CLI import packages, and only dynamically; the page is bundled with its own', () => {
    const isBundled = (from: string, to: string) => from.startsWith('dashboard/client/') && /^preact\b/.test(to)
    // Nest has an entry of its own, which is of no use without it.
    const isNest = (from: string, to: string) => /^integrations\/nestjs[./]/.test(from) && to === '@nestjs/common'
    const foreign = imports.filter(({ to }) => !to.startsWith('.') && !to.startsWith('node:'))
    const strays = foreign.filter(
      ({ from, to, dynamic, typeOnly }) =>
        !(/^(?:drivers|cli)\//.test(from) && (dynamic || typeOnly)) && !isBundled(from, to) && !isNest(from, to),
    )
    expect(strays).toEqual([])
  })

  test('timers and clocks come from core/time/native-time.ts, which fake timers do not replace', () => {
    const names = 'setTimeout|clearTimeout|setInterval|clearInterval|setImmediate|queueMicrotask|hrtime|nextTick'
    const global = /\bDate\.now\b|\bnew Date\(\)|\bperformance\b|\bprocess\.(?:hrtime|nextTick)\b|node:timers/
    const strays = sources
      .filter(
        (file) =>
          /^(?:core|primitives|drivers|telemetry)\/|^testing\/virtual-clock/.test(file) &&
          file !== 'core/time/native-time.ts',
      )
      .flatMap((file) => {
        const code = withoutComments(read(file))
        const [, imported = ''] = /^import \{([^}]*)\} from '[./a-z]*\/native-time\.ts'$/m.exec(code) ?? []
        const own = new Set(imported.split(',').map((name) => name.trim()))
        const used = [...code.matchAll(new RegExp(`(?<![.\\w])(${names})\\(`, 'g'))].map(([, name = '']) => name)
        const bare = used.filter((name) => !own.has(name))
        return [...bare, ...(global.exec(code) ?? [])].map((name) => `${file}: ${name}`)
      })
    expect(strays).toEqual([])
  })

  test('relative imports name files that exist', () => {
    const broken = imports.filter(
      ({ from, to }) => to.startsWith('.') && !existsSync(join(root, 'src', targetOf(from, to))),
    )
    expect(broken).toEqual([])
  })

  test.each(
    ['index.ts', 'lock.ts', 'driver.ts', 'testing/index.ts'].filter((file) => existsSync(join(root, 'src', file))),
  )('%s has only explicit named exports', (file) => {
    const rest = read(file).replace(/^export (?:type )?\{[^}*]*\} from '[^']+';?$/gm, '')
    expect(rest.trim()).toBe('')
  })

  test('the patterns find every form of import', () => {
    const code = [
      `import a, { b } from './one.ts'`,
      `import type {\n  C,\n} from './two.ts'`,
      `import './three.ts'`,
      `export * from './four.ts'`,
      `export type { D } from './five.ts'`,
      `const e = await import('./six.ts')`,
      `type F = import('./seven.ts').F`,
      `// import g from './comment.ts'`,
      `new Worker(new URL('./eight.ts', import.meta.url))`,
    ].join('\n')
    expect(importsOf('x.ts', code).map(({ to, typeOnly, dynamic }) => [to, typeOnly, dynamic])).toEqual([
      ['./one.ts', false, false],
      ['./two.ts', true, false],
      ['./three.ts', false, false],
      ['./four.ts', false, false],
      ['./five.ts', true, false],
      ['./six.ts', false, true],
      ['./seven.ts', false, true],
      ['./eight.ts', false, true],
    ])
  })
})

test('no tracked file contains a path of a developer’s machine', () => {
  const machinePlaces = new RegExp(
    ['work', 'root', 'home', 'Users'].map((name) => `(?<![\\w.~])/${name}/[\\w.-]+`).join('|'),
  )
  const listed = execFileSync(
    'git',
    ['-c', 'safe.directory=*', 'ls-files', '--cached', '--others', '--exclude-standard', '-z'],
    { cwd: root, encoding: 'utf8' },
  )
  const found = listed
    .split('\0')
    .filter((file) => file !== '' && lstatSync(join(root, file), { throwIfNoEntry: false })?.isFile())
    .flatMap((file) => {
      const hit = machinePlaces.exec(readFileSync(join(root, file), 'utf8'))
      return hit === null ? [] : [`${file}: ${hit[0]}`]
    })
  expect(found).toEqual([])
})

interface Import {
  readonly from: string
  readonly to: string
  readonly typeOnly: boolean
  readonly dynamic: boolean
}

const sources = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((file) => /\.tsx?$/.test(file))
  .sort()

const imports = sources.flatMap((file) => importsOf(file, read(file)))

function read(file: string): string {
  return readFileSync(join(root, 'src', file), 'utf8')
}

function importsOf(from: string, code: string): Import[] {
  const forms = [
    /^(?:import|export)\s+(?<typeOnly>type\s+)?(?:[^'";]*?\sfrom\s+)?'(?<static>[^']+)'/,
    /\bimport\(\s*'(?<called>[^']+)'/,
    /\bnew URL\(\s*'(?<located>\.[^']+)'/,
  ]
  const statement = new RegExp(forms.map(({ source }) => source).join('|'), 'gm')
  return [...withoutComments(code).matchAll(statement)].map(({ groups = {} }) => ({
    from,
    to: groups['static'] ?? groups['called'] ?? (groups['located'] as string),
    typeOnly: groups['typeOnly'] !== undefined,
    dynamic: groups['static'] === undefined,
  }))
}

function withoutComments(code: string): string {
  return code.replace(/\/\*[\s\S]*?\*\/|(?<!:)\/\/.*/g, '')
}

/** Only `connect.ts` gets from a URL to a driver. It imports only that driver. */
function isConnectOpening(from: string, dynamic: boolean): boolean {
  return from === 'connect.ts' && dynamic
}

/** Groups of files in which every file reaches every other one. */
function importCycles(): string[][] {
  const targets = new Map(sources.map((file): [string, string[]] => [file, []]))
  for (const { from, to } of imports) if (to.startsWith('.')) targets.get(from)?.push(targetOf(from, to))
  const reachedFrom = (start: string): Set<string> => {
    const seen = new Set<string>()
    const open = [...(targets.get(start) ?? [])]
    for (let file = open.pop(); file !== undefined; file = open.pop()) {
      if (seen.has(file)) continue
      seen.add(file)
      open.push(...(targets.get(file) ?? []))
    }
    return seen
  }
  const reached = new Map(sources.map((file) => [file, reachedFrom(file)]))
  const inCycles = sources.filter((file) => reached.get(file)?.has(file))
  const groups = inCycles.map((file) =>
    inCycles.filter((other) => reached.get(file)?.has(other) && reached.get(other)?.has(file)),
  )
  return groups.filter(([first], index) => first === inCycles[index])
}

/** A worker is started by its built name, which ends in `.js`. */
function targetOf(from: string, to: string): string {
  const source = to.replace(/\.js$/, '.ts')
  return relative(join(root, 'src'), join(root, 'src', dirname(from), source)).replaceAll('\\', '/')
}
