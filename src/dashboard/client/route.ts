import { useEffect, useState } from 'preact/hooks'

export type Tab = 'locks' | 'elections' | 'semaphores' | 'rates' | 'waits'
export type Route = { readonly tab: Tab } | { readonly tab: 'lock'; readonly store: number; readonly name: string }

const TABS: readonly Tab[] = ['locks', 'elections', 'semaphores', 'rates', 'waits']

/** After the `#`, so that the server has only one page. */
export const lockHref = (store: number, name: string): string => `#/lock/${store}/${encodeName(name)}`
export const tabHref = (tab: Tab): string => `#/${tab}`

export function routeOf(hash: string): Route {
  const [, first = '', store = '', ...rest] = hash.split('/')
  if (first === 'lock') return { tab: 'lock', store: Number(store), name: decodeName(rest.join('/')) }
  return { tab: TABS.find((tab) => tab === first) ?? 'locks' }
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => routeOf(location.hash))
  useEffect(() => {
    const changed = (): void => setRoute(routeOf(location.hash))
    addEventListener('hashchange', changed)
    return () => removeEventListener('hashchange', changed)
  }, [])
  return route
}

/** A name from the store may have half of a surrogate pair, for which `encodeURIComponent` throws. */
function encodeName(name: string): string {
  try {
    return encodeURIComponent(name)
  } catch {
    return encodeURIComponent(name.replaceAll(/[\ud800-\udfff]/g, '\ufffd'))
  }
}

function decodeName(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
