// @ts-check
import { Chain, chainIdOf, chainIdsOf, madeBefore } from '../../src/core/lease/chain.ts'

export function claimIds() {
  return {
    about:
      'Claim ids. chains: the id of the chain that a claim’s block has (its own id, or the one that it has in common ' +
      'with the other claims of a group), and the ids of that chain and those around it, from the innermost ' +
      'outwards. An id with more than eight parts after the prefix is alone. children: the ids of claims that are ' +
      'made inside the block of a claim, and of members of a group with the id `chain`; `random` is what the random ' +
      'source returns, of which the first 12 characters are used, and the count is in base 36. order: whether the ' +
      'first of two claims was made before the second; null if that cannot be seen.',
    chains: [
      'Zk3v9Q.1-abcdefghijkl',
      'Zk3v9Q.1-abcdefghijkl.1-mnopqrstuvwx',
      'Zk3v9Q.2-aaaaaaaaaaaa.1-bbbbbbbbbbbb.zz-cccccccccccc',
      'Zk3v9Q.3-aaaaaaaaaaaa+1-bbbbbbbbbbbb',
      'Zk3v9Q.3-aaaaaaaaaaaa.4-cccccccccccc+2-dddddddddddd',
      'p.1.2.3.4.5.6.7.8',
      'p.1.2.3.4.5.6.7.8+9',
      'p.1.2.3.4.5.6.7.8.9',
      'p.1.2.3.4.5.6.7.8.9+1',
      'plain:worker-7',
      'no-full-stop+member',
      '0f8fad5b-d9cb-469f-a165-70867728950e',
      'ü.1.日本語',
      '.1',
      'a.',
      'a..b',
      'a.b+c+d',
    ].map((claimId) => ({ claimId, chainId: chainIdOf(claimId), chainIds: chainIdsOf(claimId) })),
    children: [
      { chain: 'Zk3v9Q.1-abcdefghijkl', random: 'ABCDEFGHIJKLMNOP' },
      { chain: 'Zk3v9Q.3-aaaaaaaaaaaa+1-bbbbbbbbbbbb', random: '0123456789_-0123' },
      { chain: 'p.1.2.3.4.5.6.7', random: 'ABCDEFGHIJKLMNOP' },
      { chain: 'p.1.2.3.4.5.6.7.8', random: 'ABCDEFGHIJKLMNOP' },
    ].map(({ chain, random }) => {
      const inside = () => new Chain(chain, { id: () => random, fraction: () => 0 })
      const claims = inside()
      const all = Array.from({ length: 37 }, () => claims.nextClaimId())
      return { chain, random, first: all[0], tenth: all[9], thirtySeventh: all[36], member: inside().nextMemberId() }
    }),
    order: [
      ['p.1-aaaaaaaaaaaa', 'p.2-aaaaaaaaaaaa'],
      ['p.2-aaaaaaaaaaaa', 'p.1-aaaaaaaaaaaa'],
      ['p.z-aaaaaaaaaaaa', 'p.10-aaaaaaaaaaaa'],
      ['p.1-aaaaaaaaaaaa', 'p.1-aaaaaaaaaaaa'],
      ['p.1-aaaaaaaaaaaa', 'q.2-aaaaaaaaaaaa'],
      ['p.1-aaaaaaaaaaaa.1-bbbbbbbbbbbb', 'p.2-aaaaaaaaaaaa'],
      ['plain', 'other'],
    ].map(([claimId = '', other = '']) => ({ claimId, other, madeBefore: madeBefore(claimId, other) ?? null })),
  }
}
