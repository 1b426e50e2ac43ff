import { addAbortListener } from 'node:events'
import { AbortedError } from '../errors.ts'

/** Who gives up when a signal is aborted. */
export interface Abortable {
  aborted(): void
}

/**
 * Calls back once when the signal is aborted, in that very step. Returns what ends the listening. Not by `addEventListener` alone: whoever listened before could stop the
 * event, and a claim would wait on although its signal is aborted.
 */
export function onAbort(signal: AbortSignal, aborted: () => void): () => void {
  const listening = addAbortListener(signal, aborted)
  return () => listening[Symbol.dispose]()
}

/**
 * Aborts with the first of two signals, with its reason, until it is disposed of. By hand instead of `AbortSignal.any`: that leaves
 * something behind in a signal that outlives the others, for every call.
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

/** The same answer, or `AbortedError` if the signal is aborted first. What was begun goes on all the same. */
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

/** One listener for each signal: a service's one shutdown signal may stand behind thousands of claims. */
export function watchAbort(signal: AbortSignal, watcher: Abortable): void {
  const known = watched.get(signal)
  if (known !== undefined) {
    known.watchers.add(watcher)
    return
  }
  const watchers = new Set([watcher])
  const tell = (): void => {
    watched.delete(signal)
    for (const each of [...watchers]) each.aborted()
  }
  watched.set(signal, { watchers, stop: onAbort(signal, tell) })
}

export function unwatchAbort(signal: AbortSignal, watcher: Abortable): void {
  const known = watched.get(signal)
  known?.watchers.delete(watcher)
  if (known === undefined || known.watchers.size > 0) return
  watched.delete(signal)
  known.stop()
}

const watched = new WeakMap<AbortSignal, { readonly watchers: Set<Abortable>; readonly stop: () => void }>()
