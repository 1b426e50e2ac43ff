import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/** What is left on the heap and in buffers after a garbage collection. */
export function heapBytes(): number {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  collect()
  collect()
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
}
