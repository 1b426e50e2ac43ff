import { randomUUID } from 'node:crypto'
import { join } from 'node:path'
import { afterAll, describe, inject, it } from 'vitest'
import { connect } from '../../src/connect.ts'
import { makeFolder } from '../harness/folders.ts'
import { explained } from './explain.ts'
import { play } from './play.ts'
import { INSTANCES, type Program, programFrom, REAL } from './program.ts'
import { realWorld } from './real-world.ts'

const folder = makeFolder('model')
afterAll(() => folder.remove())

const { redis: [redis = ''] = [], postgres = '' } = inject('servers')
const stores: [name: string, url: string][] = [
  ['sqlite', `sqlite:${join(folder.path, 'locks.db')}`],
  ['redis', redis],
  ['postgres', postgres],
  ['postgres-advisory', postgres.replace(/^postgres(ql)?:/, 'postgres+advisory:')],
]
const seed = process.env['HOLDFAST_MODEL_SEED']
const runs = Number(process.env['HOLDFAST_MODEL_STORE_RUNS'] ?? (seed === undefined ? 40 : 1))
const first = Number(seed ?? 1)
/** Programs at a time. They wait more than they work. */
const AT_ONCE = 10

describe(`random programs in real time, with the seeds ${first} to ${first + runs - 1}`, () => {
  it.each(stores)('keep the rules of the model on %s', { timeout: 120_000 + runs * 5_000 }, async (name, url) => {
    const drivers = await Promise.all(Array.from({ length: INSTANCES + 1 }, () => connect(url)))
    const world = () => realWorld(drivers, `${randomUUID()}:`)
    let next = first
    async function worker(): Promise<void> {
      while (next < first + runs) {
        const program: Program = programFrom(next, REAL)
        next += 1
        const report = await play(program, world())
        if (report.violations.length === 0) continue
        next = Number.POSITIVE_INFINITY
        const replay = `HOLDFAST_MODEL_SEED=${program.seed} npx vitest run test/model/stores.test.ts -t ${name}`
        throw new Error(await explained(program, report, world, replay))
      }
    }
    try {
      await Promise.all(Array.from({ length: AT_ONCE }, worker))
    } finally {
      await Promise.all(drivers.map((driver) => driver.close()))
    }
  })
})
