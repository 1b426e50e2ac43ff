import { useEffect, useRef, useState } from 'preact/hooks'
import type { ForceReleaseAnswer, ForceReleaseRequest } from '../wire.ts'

/** Relative to the page: it may be mounted anywhere. */
const base = document.querySelector<HTMLMetaElement>('meta[name=holdfast-base]')?.content ?? './'

export const apiUrl = (call: string, query: Record<string, string | number> = {}): string => {
  const text = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString()
  return `${base}api/${call}${text === '' ? '' : `?${text}`}`
}

export interface Fetched<Value> {
  readonly value?: Value
  readonly error?: string
}

/** Fetches again when `version` changes, but no faster than the answers come. The last value stays until the next. */
export function useFetched<Value>(url: string, version: unknown): Fetched<Value> {
  const [fetched, setFetched] = useState<Fetched<Value> & { url?: string }>({})
  const wanted = useRef({ url: '' })
  const isRunning = useRef(false)
  useEffect(() => {
    wanted.current = { url }
    if (isRunning.current) return
    isRunning.current = true
    void (async () => {
      for (let done: { url: string } | undefined; done !== wanted.current; ) {
        const current = wanted.current
        const result = await getJson<Value>(current.url)
        setFetched((before) => ({ ...(before.url === current.url && before), error: '', ...result, url: current.url }))
        done = current
      }
      isRunning.current = false
    })()
  }, [url, version])
  return fetched.url === url ? fetched : {}
}

async function getJson<Value>(url: string): Promise<Fetched<Value>> {
  try {
    const response = await fetch(url)
    if (!response.ok) return { error: `The server answered ${response.status}.` }
    return { value: (await response.json()) as Value }
  } catch {
    return { error: 'The server does not answer.' }
  }
}

export async function sendForceRelease(request: ForceReleaseRequest): Promise<ForceReleaseAnswer> {
  try {
    const response = await fetch(apiUrl('force-release'), {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(request),
    })
    return (await response.json()) as ForceReleaseAnswer
  } catch {
    return { error: 'The server does not answer. Look again whether the leases were ended.' }
  }
}
