import { constants } from 'node:os'

/** The exit codes of `holdfast` itself, numbered as in sysexits.h and in shells. A command's own code is passed on. */
export const exitCodes = {
  usage: 64,
  /** The store is not available. The command did not run. */
  unavailable: 69,
  /** A bug in `holdfast` itself. */
  internal: 70,
  /** The lock was not acquired. The command did not run. `-E` changes this code. */
  notAcquired: 75,
  /** The lease was lost while the command ran, and the command was ended. */
  lost: 76,
  /** doctor: locks work, but will not in some situation. */
  doubtful: 1,
  /** doctor: locks do not work, or exclude too little. */
  broken: 2,
  notExecutable: 126,
  notFound: 127,
  /** Plus the signal's number: a signal ended the command. */
  signal: 128,
} as const

/** The exit code for a process that a signal has ended. */
export const signalCode = (signal: NodeJS.Signals): number => exitCodes.signal + constants.signals[signal]

export class UsageError extends Error {
  override readonly name = 'UsageError'
}
