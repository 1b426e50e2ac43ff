import type { Draw } from '../../draw.ts'
import { runCli } from '../cli.ts'
import type { Judge } from '../judge.ts'
import { ODD_NUMBERS, ODD_TEXTS } from '../odd.ts'
import { oddUrl } from './urls.ts'

/** Arguments of `holdfast`: it ends in time, with a documented exit code, and shows no password. */
export async function useCommandLine(dist: string, draw: Draw, judge: Judge): Promise<void> {
  const url = oddUrl(draw, judge).replaceAll('\0', '')
  const args = argumentsFrom(draw, url)
  const isInEnvironment = draw.chance(0.3)
  judge.note(JSON.stringify(args))
  const { code, output } = await runCli(dist, args, isInEnvironment ? { HOLDFAST_URL: url } : {})
  judge.outcomes.push(`exit ${code}`)
  judge.checkSecrets('the output of holdfast', output)
  judge.check(typeof code === 'number' && EXPECTED.has(code), () => `holdfast ended with ${code}: ${output}`)
  judge.check(!/^\s+at .*:\d+:\d+\)?$/m.test(output), () => `holdfast printed a stack: ${output}`)
  judge.check(output.length < 20_000, () => `holdfast printed ${output.length} characters`)
}

const EXPECTED: ReadonlySet<number> = new Set([0, 1, 64, 69, 75, 126, 127])

function argumentsFrom(draw: Draw, url: string): string[] {
  const word = (): string =>
    draw.one([...ODD_TEXTS, ...ODD_NUMBERS, 'job', url, '--', '-', '--url', '-E']).replaceAll('\0', '')
  const number = (): string => draw.one([...ODD_NUMBERS, '1', '2', 'x', url])
  const store = draw.chance(0.6) ? [draw.one(['--url', '--url=']), url] : []
  const joined = store[0] === '--url=' ? [`--url=${url}`] : store
  const timeouts = ['--store-timeout', '0.5', ...(draw.chance(0.7) ? ['--wait', '0.5'] : ['--no-wait'])]
  switch (draw.whole(0, 5)) {
    case 0:
      return [word(), word(), word()].slice(0, draw.whole(0, 3))
    case 1:
      return ['ls', ...joined, ...(draw.chance(0.5) ? [word()] : []), ...(draw.chance(0.3) ? ['--json'] : [])]
    case 2:
      return [
        'migrate',
        ...joined,
        ...(draw.chance(0.5) ? ['--schema', word()] : []),
        ...(draw.chance(0.3) ? [word()] : []),
      ]
    case 3:
      return ['run', word(), ...joined, ...timeouts, '--', 'true']
    case 4:
      return [
        'run',
        'job',
        ...joined,
        ...timeouts,
        draw.one(OPTIONS),
        number(),
        '--',
        draw.one(['true', '', 'no such', '/']),
        word(),
      ]
    default:
      return [draw.one(['run', 'ls', 'migrate', 'help']), word(), word(), ...joined, ...timeouts, '--', 'true']
  }
}

const OPTIONS = [
  '--ttl',
  '--wait',
  '--min-hold',
  '--max-hold',
  '--store-timeout',
  '-E',
  '--conflict-exit-code',
  '--odd',
]
