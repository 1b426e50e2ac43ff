import { createHash } from 'node:crypto'
import type { Draw } from '../../draw.ts'
import { ODD_NUMBERS, oddBytes, oddText } from '../odd.ts'

/** What a forger knows who can read everything in the store, except the secret of a claim. */
export interface Known {
  readonly claimId: string
  readonly lockName: string
  /** A claim that holds another lock. */
  readonly heldClaimId: string
  /** Genuine messages of before. */
  readonly heard: readonly string[]
}

/** A message that looks right to some degree. */
export function forgedMessage(draw: Draw, known: Known): Buffer {
  const { claimId, lockName, heldClaimId, heard } = known
  switch (draw.whole(0, 11)) {
    case 0:
      return oddBytes(draw, 400)
    case 1:
      return Buffer.from(heard.length > 0 ? draw.one(heard) : '[]')
    case 2:
      return Buffer.from(oddText(draw, heard.length > 0 ? draw.one(heard) : grant(draw, claimId)))
    case 3:
    case 4:
      return Buffer.from(grant(draw, claimId))
    case 5:
      return Buffer.from(JSON.stringify([claimId]))
    case 6:
      return Buffer.from(forced(draw, [claimId, heldClaimId]))
    case 7:
      return Buffer.from(JSON.stringify([lockName, claimId, `${draw.fraction()}`]))
    case 8:
      return Buffer.from(
        JSON.stringify([
          ['granted', claimId, lockName],
          ['wake', claimId, 7],
          ['granted', heldClaimId],
        ]),
      )
    case 9:
      return Buffer.from(
        JSON.stringify([[draw.one(['granted', 'wake', 'lost', '']), claimId, draw.one([lockName, 'x'])]]),
      )
    case 10:
      return Buffer.concat([Buffer.from(`["${claimId}",`), oddBytes(draw), Buffer.from(']')])
    default:
      return Buffer.from(draw.chance(0.15) ? huge(draw, known) : oddText(draw, forced(draw, [heldClaimId])))
  }
}

/** As leases.lua would write it, but without the secret. */
function grant(draw: Draw, claimId: string): string {
  const nowMs = Date.now()
  const numbers = [nowMs * 1_000, nowMs, 60_000].map((each) => (draw.chance(0.2) ? draw.one(ODD_NUMBERS) : `${each}`))
  const told = [JSON.stringify(claimId), ...numbers].join(',')
  const secret = draw.one(['', 'secret', 'undefined', claimId])
  const proof = createHash('sha1').update(`${secret}${told}${secret}`).digest('hex')
  return `[${told},${draw.one([`"${proof}"`, '""', '7', 'null', `"${'f'.repeat(100)}"`])}]`
}

const forced = (draw: Draw, claimIds: readonly string[]): string =>
  JSON.stringify({
    lost: draw.one<unknown>([claimIds, [...claimIds, 7, null, {}], claimIds[0], {}, Array(2_000).fill(claimIds[0])]),
    by: draw.one<unknown>(['an operator', 7, null, {}, ['x'], 'x'.repeat(5_000), undefined]),
  })

function huge(draw: Draw, { claimId, lockName }: Known): string {
  const filler = draw.one(['x', '[', '{"a":', '\u{1f512}']).repeat(draw.one([10_000, 300_000]))
  return draw.one([
    filler,
    JSON.stringify([lockName, claimId, filler + draw.fraction()]),
    JSON.stringify([filler]),
    JSON.stringify({ lost: [claimId, filler], by: filler }),
  ])
}
