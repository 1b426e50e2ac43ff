#!/usr/bin/env node
import { HoldfastError, InvalidArgumentError } from '../core/errors.ts'
import { isA, safeCause, textOf } from '../core/foreign-errors.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { helpFor } from './help.ts'
import { say } from './text.ts'

/** Each command is loaded when it is called, so that `holdfast --help` loads no database client. */
const commands: Record<string, () => Promise<{ main(args: readonly string[]): Promise<number> }>> = {
  run: () => import('./run.ts'),
  ls: () => import('./ls.ts'),
  top: () => import('./top.ts'),
  show: () => import('./show.ts'),
  wait: () => import('./wait.ts'),
  'force-release': () => import('./force-release.ts'),
  elect: () => import('./elect.ts'),
  limit: () => import('./limit.ts'),
  dashboard: () => import('./dashboard.ts'),
  doctor: () => import('./doctor.ts'),
  migrate: () => import('./migrate.ts'),
  completion: () => import('./completion.ts'),
}

async function main([command = '--help', ...args]: readonly string[]): Promise<number> {
  if (command === '--version' || command === '-V') {
    process.stdout.write(`${await version()}\n`)
    return 0
  }
  const end = args.indexOf('--')
  const own = end === -1 ? args : args.slice(0, end)
  const topic = command === 'help' ? args[0] : own.some(isHelp) ? command : undefined
  if (command === 'help' || isHelp(command) || topic !== undefined) {
    process.stdout.write(helpFor(topic))
    return 0
  }
  const load = Object.hasOwn(commands, command) ? commands[command] : undefined
  if (load === undefined)
    throw new UsageError(`unknown command "${command}"; the commands are ${Object.keys(commands).join(', ')}`)
  return (await load()).main(args)
}

const isHelp = (word: string): boolean => word === '--help' || word === '-h'

async function version(): Promise<string> {
  const { default: found } = (await import('holdfast/package.json', { with: { type: 'json' } })) as {
    default: { version: string }
  }
  return found.version
}

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // `holdfast ls | head -1` closes our output early, which is no error.
  if (error.code === 'EPIPE') process.exit()
  if (error.code !== 'EIO') throw error
  // The terminal is gone. Node would abort in `process.exit`, because it cannot reset the mode of the terminal.
  process.kill(process.pid, 'SIGHUP')
})
// A command and its lock must not end because the reader of our messages has gone.
process.stderr.on('error', () => {})

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  if (isA(error, UsageError) || isA(error, InvalidArgumentError)) {
    say(error.message)
    process.stderr.write('Try: holdfast --help\n')
    process.exitCode = exitCodes.usage
  } else if (isA(error, HoldfastError)) {
    say(error.message)
    process.exitCode = exitCodes.unavailable
  } else {
    // Node's own output would show the error's properties, which may hold a URL with a password.
    for (const line of (safeCause(error).stack ?? textOf(error)).split('\n')) say(line)
    process.exitCode = exitCodes.internal
  }
}
// Everything has been awaited: a connection to a store that does not answer must not keep the process alive.
setTimeout(() => process.exit(), 100).unref()
