import { hash } from 'node:crypto'

/**
 * The key of an advisory lock for a lock name: the first eight bytes of the SHA-256 of its UTF-8 form, as a signed
 * big-endian number. It is returned in decimal, because a JavaScript number cannot hold it. With 64 bits, a million
 * names that are held at once have a collision once in 37 million cases.
 */
export const advisoryKey = (lockName: string): string => hash('sha256', lockName, 'buffer').readBigInt64BE(0).toString()

/** The key by which a client asks the holder of a lease to let go of it. */
export const breakKey = ({
  claimId,
  fencingToken,
}: {
  readonly claimId: string
  readonly fencingToken: number
}): string => advisoryKey(`holdfast:break:${claimId}:${fencingToken}`)
