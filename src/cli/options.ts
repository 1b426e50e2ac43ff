import { TOP_SORTINGS } from './top-state.ts'

/** The options of each command, for completion. test/cli/completion.test.ts compares them with the help. */
export const commandOptions: Readonly<Record<string, readonly string[]>> = {
  run: [
    ...['--url', '--ttl', '--wait', '--no-wait', '--shared', '--min-hold', '--max-hold', '--store-timeout'],
    '--conflict-exit-code',
  ],
  ls: ['--url', '--wide', '--json', '--sort', '--held-longer-than', '--watch', '--all'],
  top: ['--url', '--sort', '--every', '--all'],
  show: ['--url', '--json'],
  wait: ['--url', '--timeout'],
  break: ['--url', '--reason', '--by', '--yes', '--end-session'],
  elect: ['--url', '--ttl', '--store-timeout'],
  limit: ['--url', '--rate', '--burst', '--wait', '--no-wait'],
  dashboard: ['--url', '--port', '--host', '--allow-host', '--allow-actions', '--by', '--elections'],
  doctor: ['--url', '--json'],
  migrate: ['--url', '--schema', '--only', '--print'],
  completion: [],
}

/** The values of an option, where there are only these. */
export const optionValues: readonly { command: string; option: string; values: readonly string[] }[] = [
  { command: 'ls', option: '--sort', values: ['name', 'age', 'waiters'] },
  { command: 'top', option: '--sort', values: TOP_SORTINGS },
  { command: 'migrate', option: '--only', values: ['fence'] },
]

/** The commands that take the name of a lock. */
export const takesName: readonly string[] = ['run', 'show', 'wait', 'break', 'elect']
