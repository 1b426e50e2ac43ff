/** Who gives up when a signal is aborted. */
export interface Abortable {
  aborted(): void
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
  watched.set(signal, { watchers, tell })
  signal.addEventListener('abort', tell, { once: true })
}

export function unwatchAbort(signal: AbortSignal, watcher: Abortable): void {
  const known = watched.get(signal)
  known?.watchers.delete(watcher)
  if (known === undefined || known.watchers.size > 0) return
  watched.delete(signal)
  signal.removeEventListener('abort', known.tell)
}

const watched = new WeakMap<AbortSignal, { readonly watchers: Set<Abortable>; readonly tell: () => void }>()
