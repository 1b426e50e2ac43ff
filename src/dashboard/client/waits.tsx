import type { LiveStore } from './live.ts'

export function Waits({ stores }: { stores: LiveStore[] }) {
  return <p>{stores.length}</p>
}
