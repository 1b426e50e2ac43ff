import type { Ground, Stage, Target } from '../target.ts'
import { useArguments } from './arguments.ts'
import { useCommandLine } from './command-line.ts'
import { oddUrl, useUrl } from './urls.ts'

/** What a caller passes: arguments, options, URLs, and the command line. */
export const input: Target = {
  name: 'input',
  jobs: 3,
  async open({ library, dist }: Ground): Promise<Stage> {
    // An instance without a store would otherwise use a file of the user.
    const before = process.env['HOLDFAST_URL']
    process.env['HOLDFAST_URL'] = 'memory:'
    return {
      async run(draw, judge) {
        const kind = draw.weighted([
          ['arguments', 16],
          ['urls', 4],
          ['cli', 1],
        ])
        if (kind === 'cli') return useCommandLine(dist, draw, judge)
        if (kind === 'urls') {
          const url = oddUrl(draw, judge)
          judge.note(url.replaceAll(/[^ -~]/g, '?'))
          return useUrl(library, judge, url)
        }
        const driver = await library.connect('memory:')
        const lock = new library.DistributedLock({ driver })
        await useArguments({ library, draw, driver, lock, name: judge.name }, judge)
        await judge.settles('close', () => lock.close())
      },
      async [Symbol.asyncDispose]() {
        if (before === undefined) delete process.env['HOLDFAST_URL']
        else process.env['HOLDFAST_URL'] = before
      },
    }
  },
}
