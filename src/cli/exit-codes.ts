/** What `holdfast` itself ends with; a command's own code is passed on as it is. Numbers as in sysexits.h and in shells. */
export const exitCodes = {
  usage: 64,
  /** The store could not be asked. The command did not run. */
  unavailable: 69,
  /** A fault in `holdfast` itself. */
  internal: 70,
  /** The lock was not got. The command did not run. `-E` changes it. */
  notAcquired: 75,
  /** The lease was lost while the command ran, and the command was ended. */
  lost: 76,
  notExecutable: 126,
  notFound: 127,
  /** Plus the signal's number: the command was ended by a signal. */
  signal: 128,
} as const

export class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** What `parseArgs` says, without its advice on how to quote, which is wrong where `--` begins a command. */
export function usageErrorFrom(error: unknown): UsageError {
  const [said = ''] = (error instanceof Error ? error.message : String(error)).split('To specify')
  return new UsageError(said.replaceAll(/\s+/g, ' ').trim())
}
