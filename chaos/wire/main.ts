import { writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { readCase } from './case.ts'
import type { StoreName } from './client.ts'
import { type Exploration, explore, type Progress, type Violation } from './explore.ts'
import { figuresOf, tableOf } from './report.ts'
import { SCENES } from './scenes/index.ts'
import { STORES } from './scenes/scene.ts'

/** Returns the exit code: 0 if nothing broke, 1 for a violation, 2 for bad arguments or a run that proves nothing. */
export async function main(args: readonly string[], root: string): Promise<number> {
  let settings: Settings
  try {
    settings = settingsFrom(args, root)
  } catch (error) {
    console.error((error as Error).message)
    return 2
  }
  let printedAt = 0
  const report = ({ done, of, violations }: Progress): void => {
    if (done < of && Date.now() - printedAt < 10_000) return
    printedAt = Date.now()
    console.log(`${done} of ${of} cases, ${violations} violations`)
  }
  const explored = await explore({ ...settings.exploration, report, found: printViolation })
  const figures = figuresOf(explored, settings.exploration.seed)
  console.log(tableOf(figures))
  if (settings.json !== undefined) writeFileSync(settings.json, `${JSON.stringify(figures, undefined, 2)}\n`)
  if (figures.violations.length > 0) return 1
  return figures.problems.length > 0 ? 2 : 0
}

interface Settings {
  readonly exploration: Exploration
  /** The file for the figures. */
  readonly json?: string
}

function settingsFrom(args: readonly string[], root: string): Settings {
  const { values } = parseArgs({
    args: [...args],
    options: {
      scene: { type: 'string' },
      store: { type: 'string' },
      pairs: { type: 'string', default: '20' },
      seed: { type: 'string', default: '1' },
      jobs: { type: 'string', default: '80' },
      sample: { type: 'string' },
      only: { type: 'string', multiple: true },
      dist: { type: 'string', default: `${root}dist` },
      mirrored: { type: 'boolean', default: false },
      json: { type: 'string' },
    },
  })
  const wanted = values.scene?.split(',')
  const unknown = wanted?.find((name) => !SCENES.some((scene) => scene.name === name))
  if (unknown !== undefined) {
    throw new Error(`--scene ${unknown}: it takes some of ${SCENES.map(({ name }) => name).join(', ')}`)
  }
  const exploration: Exploration = {
    dist: resolve(values.dist),
    scenes: SCENES.filter(({ name }) => wanted === undefined || wanted.includes(name)),
    stores: storesFrom(values.store),
    pairs: wholeNumber('pairs', values.pairs),
    jobs: wholeNumber('jobs', values.jobs),
    seed: values.seed,
    isMirrored: values.mirrored,
    ...(values.sample !== undefined && { sample: wholeNumber('sample', values.sample) }),
    ...(values.only && { only: values.only.map((text) => readCase(text, SCENES)) }),
  }
  return { exploration, ...(values.json !== undefined && { json: values.json }) }
}

function storesFrom(list: string | undefined): readonly StoreName[] {
  if (list === undefined) return STORES
  return list.split(',').map((name) => {
    const store = STORES.find((each) => each === name)
    if (store === undefined) throw new Error(`--store ${name}: it takes some of ${STORES.join(', ')}`)
    return store
  })
}

function wholeNumber(name: string, text: string): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < 0) throw new Error(`--${name} ${text}: it takes a whole number`)
  return value
}

function printViolation({ case: which, labels, violations }: Violation): void {
  console.log(`\nVIOLATION in ${which} (${labels.join(', ')})`)
  for (const text of violations) console.log(`  ${text}`)
  console.log(`  npm run explore -- --only '${which}'`)
}
