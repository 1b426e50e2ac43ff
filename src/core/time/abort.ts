import { addAbortListener } from 'node:events'
import { AbortedError } from '../errors.ts'

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
