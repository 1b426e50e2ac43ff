import { play, type Report, type World } from './play.ts'
import { printed } from './print.ts'
import type { Program } from './program.ts'
import { shrink } from './shrink.ts'

/** Which rule a program broke, the simplest program that breaks it too, what happened in it, and how to replay it. */
export async function explained(
  program: Program,
  failed: Report,
  makeWorld: (program: Program) => World,
  command: string,
): Promise<string> {
  const rule = failed.violations[0]?.rule
  const startedMs = performance.now()
  let shown = failed
  const simple = await shrink(program, async (simpler) => {
    if (performance.now() - startedMs > MAX_MS) return false
    const report = await play(simpler, makeWorld(simpler))
    const fails = report.violations[0]?.rule === rule
    if (fails) shown = report
    return fails
  })
  const until = shown.trace.findIndex((line) => line.includes('VIOLATION'))
  return [
    `${rule}: ${shown.violations[0]?.text}`,
    '',
    printed(simple),
    '',
    ...shown.trace.slice(Math.max(0, until - 40), until + 10),
    '',
    `seed ${program.seed}: ${command}`,
  ].join('\n')
}

/** In real time, a program that fails only sometimes could be simplified for hours. */
const MAX_MS = 60_000
