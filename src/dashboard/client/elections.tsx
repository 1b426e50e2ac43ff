import type { LiveStore } from './live.ts'

export function Elections({ stores }: { stores: LiveStore[] }) {
  return <p>{stores.length}</p>
}
