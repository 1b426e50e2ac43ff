// Three instances, one leader. One leader is shut down, and one resigns. Each time the next instance leads at once, but
// never before the last leader has stopped.
import { setTimeout as sleep } from 'node:timers/promises'
import { LeaderElection, type Term } from 'holdfast'

// In production each instance is a separate process, on a store that all can reach.
const instances = [1, 2, 3].map((number) => {
  const options = { name: 'scheduler', url: 'memory:election', holderId: `instance-${number}` }
  return { election: new LeaderElection<string>(options), shutdown: new AbortController() }
})
const [first, second, third] = instances as [Instance, Instance, Instance]

const runs = instances.map(({ election, shutdown }, index) =>
  election.run(schedule, {
    value: `10.0.0.${index + 1}:8080`, // where the others find the leader
    signal: shutdown.signal, // process.once('SIGTERM', () => shutdown.abort())
    onDemoted: ({ holderId }) => console.log(`${holderId} leads no more`),
    onError: (error) => console.error(error),
  }),
)
console.log(await leaderAfter())

// A deployment: the leader finishes its work and hands over at once. No instance has to wait until a lease expires.
first.shutdown.abort()
await runs[0]
console.log(await leaderAfter('instance-1'))

// The leader has a problem, and resigns in favour of another instance.
await second.election.resign()
console.log(await leaderAfter('instance-2'))

for (const { shutdown } of instances) shutdown.abort()
await Promise.all(runs)
for (const { election } of instances) await election.close()

async function schedule(term: Term<string>): Promise<void> {
  while (!term.signal.aborted) await sleep(5) // … look for what is due, and write with `term.fencingToken`
}

async function leaderAfter(holderId?: string): Promise<string> {
  for await (const leader of third.election.observe({ everySeconds: 0.05 })) {
    if (leader !== undefined && leader.holderId !== holderId) return `${leader.holderId} leads, at ${leader.value}`
  }
  throw new Error('the observer was closed')
}

type Instance = { election: LeaderElection<string>; shutdown: AbortController }
