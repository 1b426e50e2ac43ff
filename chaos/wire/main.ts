import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { readCase } from './case.ts'
import type { StoreName } from './client.ts'
import { type Exploration, type Explored, explore, type Progress, type Violation } from './explore.ts'
import { SCENES } from './scenes/index.ts'
import { ALL } from './scenes/scene.ts'

/** Returns the exit code: 0 if nothing broke, 1 for a violation, 2 for bad arguments. */
export async function main(args: readonly string[], root: string): Promise<number> {
  let exploration: Exploration
  try {
    exploration = explorationFrom(args, root)
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
  const explored = await explore({ ...exploration, report, found: printViolation })
  console.log(tableOf(explored))
  return explored.violations.length === 0 ? 0 : 1
}

function explorationFrom(args: readonly string[], root: string): Exploration {
  const { values } = parseArgs({
    args: [...args],
    options: {
      scene: { type: 'string' },
      store: { type: 'string' },
      pairs: { type: 'string', default: '20' },
      seed: { type: 'string', default: '1' },
      jobs: { type: 'string', default: '40' },
      sample: { type: 'string' },
      only: { type: 'string', multiple: true },
      dist: { type: 'string', default: `${root}dist` },
      mirrored: { type: 'boolean', default: false },
    },
  })
  const wanted = values.scene?.split(',')
  const unknown = wanted?.find((name) => !SCENES.some((scene) => scene.name === name))
  if (unknown !== undefined) {
    throw new Error(`--scene ${unknown}: it takes some of ${SCENES.map(({ name }) => name).join(', ')}`)
  }
  return {
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
}

function storesFrom(list: string | undefined): readonly StoreName[] {
  if (list === undefined) return ALL
  return list.split(',').map((name) => {
    const store = ALL.find((each) => each === name)
    if (store === undefined) throw new Error(`--store ${name}: it takes some of ${ALL.join(', ')}`)
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

function tableOf({ rows, violations, unrepeated, seconds }: Explored): string {
  const sum = (of: (row: Explored['rows'][number]) => number): number => rows.reduce((all, row) => all + of(row), 0)
  const lines = [...rows]
    .sort((x, y) => (`${x.store}/${x.scene}` < `${y.store}/${y.scene}` ? -1 : 1))
    .map(({ scene, store, messages, cases, pairs, missed, grants }) => {
      const cells = [messages, cases, pairs, missed, grants].map((count) => `${count}`.padStart(8))
      return `${`${store}/${scene}`.padEnd(28)}${cells.join('')}`
    })
  return [
    '',
    'scene'.padEnd(28) + ['messages', 'faults', 'pairs', 'missed', 'grants'].map((each) => each.padStart(8)).join(''),
    ...lines,
    `${rows.length} scenes, ${sum(({ messages }) => messages)} messages, ` +
      `${sum(({ cases }) => cases)} messages × faults, ` +
      `${sum(({ pairs }) => pairs)} pairs, ${sum(({ grants }) => grants)} grants, ${Math.round(seconds)} s: ` +
      `${violations.length} violations` +
      (unrepeated > 0 ? `; ${unrepeated} cases were slow once, and not again` : ''),
  ].join('\n')
}
