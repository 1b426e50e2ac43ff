// A welcome mail is sent once, although three instances hear of the new user, and the first one fails.
import { setTimeout as sleep } from 'node:timers/promises'
import { OnceOnly } from 'holdfast'

// In production each would be a process of its own, on a store that all can reach.
const instances = [1, 2, 3].map((number) => new OnceOnly({ url: 'memory:mails', holderId: `instance-${number}` }))
let tries = 0

const heard = await Promise.allSettled(instances.map((jobs) => welcome(jobs, 'ada')))
for (const each of heard)
  console.log(each.status === 'fulfilled' ? each.value.receipt : `failed: ${each.reason.message}`)

// Hours later, somebody asks again: nothing is sent, the receipt is still known.
console.log((await welcome(instances[2] as OnceOnly, 'ada')).receipt)

// The same for a schedule: every instance has it, each tick runs in one of them.
const cleanedUp: string[] = []
const ticks = instances.map((jobs) =>
  jobs.everyTick('clean-up', () => {
    cleanedUp.push(jobs.holderId)
  }),
)
const threeInTheMorning = new Date('2026-03-01T03:00:00Z') // what a scheduler would pass
await Promise.all(ticks.map((tick) => tick(threeInTheMorning)))
console.log(`${ticks.length} instances, ${cleanedUp.length} cleaned up`)

for (const jobs of instances) await jobs.close()

function welcome(jobs: OnceOnly, user: string): Promise<{ receipt: string }> {
  const send = async ({ fencingToken }: { fencingToken: number }) => {
    tries += 1
    await sleep(20) // the mail server is thinking; a real one would be given `user` and `fencingToken` to tell a second run from the first
    if (tries === 1 || fencingToken < 1) throw new Error('the mail server is busy')
    return { receipt: `mail to ${user}, sent at try ${tries} by ${jobs.holderId}` }
  }
  return jobs.once(`welcome:${user}`, send, { forSeconds: 86_400 })
}
