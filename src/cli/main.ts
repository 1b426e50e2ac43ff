#!/usr/bin/env node
import { HoldfastError, InvalidArgumentError } from '../core/errors.ts'
import { exitCodes, UsageError } from './exit-codes.ts'
import { helpFor } from './help.ts'

/** Each command is loaded when it is called: `holdfast --help` need not open a database client. */
const commands: Record<string, () => Promise<{ main(args: readonly string[]): Promise<number> }>> = {
  run: () => import('./run.ts'),
  ls: () => import('./ls.ts'),
}

async function main([command = '--help', ...args]: readonly string[]): Promise<number> {
  if (command === '--version' || command === '-V') {
    process.stdout.write(`${await version()}\n`)
    return 0
  }
  const topic = command === 'help' ? args[0] : isHelp(args[0]) ? command : undefined
  if (command === 'help' || isHelp(command) || topic !== undefined) {
    process.stdout.write(helpFor(topic))
    return 0
  }
  const load = Object.hasOwn(commands, command) ? commands[command] : undefined
  if (load === undefined)
    throw new UsageError(`there is no command "${command}"; there are: ${Object.keys(commands).join(', ')}`)
  return (await load()).main(args)
}

const isHelp = (word: string | undefined): boolean => word === '--help' || word === '-h'

async function version(): Promise<string> {
  const { default: found } = (await import('holdfast/package.json', { with: { type: 'json' } })) as {
    default: { version: string }
  }
  return found.version
}

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  if (error instanceof UsageError || error instanceof InvalidArgumentError) {
    process.stderr.write(`holdfast: ${error.message}\nTry: holdfast --help\n`)
    process.exitCode = exitCodes.usage
  } else if (error instanceof HoldfastError) {
    process.stderr.write(`holdfast: ${error.message}\n`)
    process.exitCode = exitCodes.unavailable
  } else {
    throw error
  }
}
