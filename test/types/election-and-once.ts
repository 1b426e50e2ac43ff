import { Fence, type FencingGuard, type Leader, LeaderElection, OnceOnly, type Term, type TickResult } from 'holdfast'
import { type PostgresTransaction, postgresFence } from 'holdfast/drivers/postgres'
import { redisFence } from 'holdfast/drivers/redis'
import type { Equal } from './equal.ts'

const election = new LeaderElection<{ address: string }>({ name: 'a', url: 'memory:' })
const jobs = new OnceOnly({ url: 'memory:' })

export async function theValueHasItsType() {
  const term = await election.campaign({ value: { address: 'x' } })
  const ofTerm: Equal<typeof term, Term<{ address: string }>> = true
  const leader = await election.leader()
  const ofLeader: Equal<typeof leader, Leader<{ address: string }> | undefined> = true
  // @ts-expect-error the value has the type of the election
  await election.campaign({ value: 7 })
  // @ts-expect-error `name` is required
  new LeaderElection({ url: 'memory:' })
  for await (const each of election.observe()) each?.value?.address.toUpperCase()
  return [ofTerm, ofLeader]
}

export async function onceInfersItsResult() {
  const result = await jobs.once('key', async () => ({ pages: 12 }), { forSeconds: 1 })
  const sameType: Equal<typeof result, { pages: number }> = true
  // @ts-expect-error `forSeconds` is required
  await jobs.once('key', () => 1, {})
  const tick = jobs.everyTick('name', (run, date: Date | undefined) => run.fencingToken + Number(date))
  const ofTick: Equal<typeof tick, (context?: Date) => Promise<TickResult<number>>> = true
  // @ts-expect-error a run has no `release`
  await jobs.once('key', (run) => run.release(), { forSeconds: 1 })
  return [sameType, ofTick]
}

export function everyGuardHasOneName(transaction: PostgresTransaction, client: Parameters<typeof redisFence>[0]) {
  const guards: FencingGuard[] = [new Fence(), redisFence(client), postgresFence(transaction)]
  const inOneCall: Promise<void> = postgresFence(transaction, 'account:7', { fencingToken: 1 })
  return [guards, inOneCall]
}
