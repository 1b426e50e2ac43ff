import { hash } from 'node:crypto'

/**
 * The key of a lock name among advisory locks: the first eight bytes of the SHA-256 of its UTF-8 form, as a signed
 * big-endian number. In decimal, since a JavaScript number cannot hold it. With 64 bits, a million names held at once
 * meet by chance once in 37 million tries.
 */
export const advisoryKey = (lockName: string): string => hash('sha256', lockName, 'buffer').readBigInt64BE(0).toString()
