import { deflateRawSync } from 'node:zlib'
import { expect, it } from 'vitest'
import { readActivityComment } from '../../../src/drivers/postgres-advisory/activity-comment.ts'

/** Any session can begin a statement with such a comment. Found by chaos/fuzz. */

it('an entry of an activity comment that is not ours is left out', () => {
  const read = (entries: string) => readActivityComment(`/*holdfast ${entries} */ SELECT 1`)
  const ours = '["name","claim","holder",0]'
  for (const odd of ['7', 'null', '{}', '[]', '"x"', '[7,"c","h",0]', '["n",null,"h",0]', '["n","c",{"a":1},0]']) {
    expect(read(`[${odd},${ours}]`)).toEqual([
      { lockName: 'name', claimId: 'claim', holderId: 'holder', shared: false },
    ])
  }
  expect(read('{"length":1}')).toEqual([])
})

it('a short comment that becomes a very long text is not read', () => {
  const bomb = deflateRawSync(`[${' '.repeat(50_000_000)}]`).toString('base64')
  const before = process.memoryUsage().arrayBuffers
  expect(readActivityComment(`/*holdfast ${bomb} */`)).toEqual([])
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(20_000_000)
})
