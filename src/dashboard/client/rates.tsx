import type { LiveStore } from './live.ts'

export function Rates({ stores }: { stores: LiveStore[] }) {
  return <p>{stores.length}</p>
}
