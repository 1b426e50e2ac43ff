import { addAbortListener } from 'node:events'
import { AbortedError } from '../errors.ts'
import { afterReading, type Clock } from './clock.ts'

/** Reacts when a signal is aborted. */
export interface Abortable {
  aborted(): void
}

/** Calls `aborted` once, synchronously, when the signal is aborted. Returns a function that ends that. */
export function onAbort(signal: AbortSignal, aborted: () => void): () => void {
  const watcher = { aborted }
  watchAbort(signal, watcher)
  return () => unwatchAbort(signal, watcher)
}

/**
 * A signal that aborts with the first of two signals, with its reason. Dispose of it after use. It does not use
 * `AbortSignal.any`, which leaks an entry for every call in a signal that outlives the other one.
 */
export function eitherSignal(one: AbortSignal, other: AbortSignal): { readonly signal: AbortSignal } & Disposable {
  const either = new AbortController()
  const watchers = [one, other].map((signal) => ({ signal, aborted: () => either.abort(signal.reason) }))
  for (const watcher of watchers) {
    if (watcher.signal.aborted) watcher.aborted()
    else watchAbort(watcher.signal, watcher)
  }
  return {
    signal: either.signal,
    [Symbol.dispose]: () => {
      for (const watcher of watchers) unwatchAbort(watcher.signal, watcher)
    },
  }
}

/** Settles as `work` does, or rejects with `AbortedError` if the signal is aborted first. The work itself continues. */
export function unlessAborted<T>(work: Promise<T>, signal: AbortSignal | undefined, what: string): Promise<T> {
  if (signal === undefined) return work
  return new Promise((resolve, reject) => {
    const watcher = { aborted: () => reject(new AbortedError(what, signal.reason)) }
    if (signal.aborted) watcher.aborted()
    else watchAbort(signal, watcher)
    const settled = (): void => unwatchAbort(signal, watcher)
    work.then(resolve, reject)
    work.then(settled, settled)
  })
}

/**
 * Adds a watcher. Each signal has one listener for all of them: thousands of claims may use one shutdown signal. Node
 * warns of a leak above ten listeners, and removes one of n in a time of n.
 */
export function watchAbort(signal: AbortSignal, watcher: Abortable): void {
  const known = watched.get(signal)
  if (known !== undefined) {
    known.watchers.add(watcher)
    return
  }
  const watchers = new Set([watcher])
  const notifyAll = (): void => {
    // A watcher may remove others, which then are not called.
    for (const each of watchers) {
      watchers.delete(each)
      each.aborted()
    }
    if (watched.get(signal)?.watchers === watchers) watched.delete(signal)
  }
  // Not `addEventListener` alone: an earlier listener could stop the propagation of the event, and a claim would go on
  // waiting although its signal is aborted.
  const listener = addAbortListener(signal, notifyAll)
  watched.set(signal, { watchers, stop: () => listener[Symbol.dispose]() })
}

export function unwatchAbort(signal: AbortSignal, watcher: Abortable): void {
  const known = watched.get(signal)
  known?.watchers.delete(watcher)
  if (known === undefined || known.watchers.size > 0) return
  watched.delete(signal)
  known.stop()
}

const watched = new WeakMap<AbortSignal, { readonly watchers: Set<Abortable>; readonly stop: () => void }>()

/**
 * Resolves after `ms`, or when one of the signals aborts. Never rejects: the caller checks its state afterwards anyway.
 */
export function pause(clock: Clock, ms: number, ...signals: readonly (AbortSignal | undefined)[]): Promise<void> {
  if (signals.some((signal) => signal?.aborted)) return Promise.resolve()
  return new Promise((resolve) => {
    // Not AbortSignal.any: it leaks an entry for every pause in a signal that outlives the pause.
    const stop = (): void => {
      timer.cancel()
      for (const stopListening of listeners) stopListening()
      resolve()
    }
    const timer = clock.setTimer(stop, ms, true)
    const listeners = signals.flatMap((signal) => (signal === undefined ? [] : [onAbort(signal, stop)]))
  })
}

/** Settles as `work` does, or rejects with `late()` after `ms`. The work itself continues. */
export function withTimeout<T>(clock: Clock, ms: number, work: Promise<T>, late: () => Error): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = clock.setTimer(() => afterReading(clock, () => reject(late())), ms, true)
    const settled = (): void => timer.cancel()
    work.then(resolve, reject)
    work.then(settled, settled)
  })
}

/** Whether the work resolves within `ms`. Rejects if the work rejects before that. The work itself continues. */
export async function settlesWithin(clock: Clock, ms: number, work: Promise<unknown>): Promise<boolean> {
  const timedOut = new Error('timed out')
  try {
    await withTimeout(clock, ms, work, () => timedOut)
    return true
  } catch (error) {
    if (error === timedOut) return false
    throw error
  }
}
