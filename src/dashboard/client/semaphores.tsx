import type { LiveStore } from './live.ts'

export function Semaphores({ stores }: { stores: LiveStore[] }) {
  return <p>{stores.length}</p>
}
