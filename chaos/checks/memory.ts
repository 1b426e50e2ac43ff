import type { ClientHistory, MemorySample } from '../history.ts'
import type { Check } from './run.ts'

/** A process that has lived shorter than this is still loading code and filling caches. */
const LEAST_MS = 20_000
/** How much the reachable memory of a Node process may grow from the first half of its life to the last quarter. */
const MOST_HEAP_BYTES = 4 * 2 ** 20
/** The same for the whole memory of a process, where the reachable part is unknown. Allocators keep what they get. */
const MOST_RSS_BYTES = 24 * 2 ** 20

/** The memory of a client does not grow. */
export const memory: Check = {
  name: 'memory',
  find: ({ histories }) =>
    histories.flatMap((history) => {
      const growth = growthOf(history)
      if (growth === undefined || growth.bytes <= growth.most) return []
      const [mebibytes, seconds] = [growth.bytes / 2 ** 20, growth.forMs / 1_000]
      return [{ text: `the memory of client ${history.client} grew by ${mebibytes.toFixed(1)} MiB in ${seconds} s` }]
    }),
}

/** Compares the medians of the second quarter and of the last quarter of the samples. */
export function growthOf({
  memory: samples,
}: ClientHistory): { bytes: number; most: number; forMs: number } | undefined {
  const [first, last] = [samples[0], samples.at(-1)]
  if (first === undefined || last === undefined || last.atMs - first.atMs < LEAST_MS) return undefined
  const hasHeap = samples.every(({ heapBytes }) => heapBytes !== undefined)
  const bytesOf = ({ heapBytes, rssBytes }: MemorySample): number => (hasHeap ? heapBytes : undefined) ?? rssBytes
  const quarter = (number: number): number =>
    median(samples.slice((samples.length * number) / 4, (samples.length * (number + 1)) / 4).map(bytesOf))
  return {
    bytes: quarter(3) - quarter(1),
    most: hasHeap ? MOST_HEAP_BYTES : MOST_RSS_BYTES,
    forMs: Math.round(last.atMs - first.atMs),
  }
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.floor(sorted.length / 2)] ?? 0
}
