import type { LiveStore } from './live.ts'

export function LockPage({ name }: { store: LiveStore | undefined; name: string }) {
  return <h1>{name}</h1>
}
