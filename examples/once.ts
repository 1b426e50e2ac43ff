// A welcome mail is sent once, although three instances learn of the new user and the first attempt fails.
import { setTimeout as sleep } from 'node:timers/promises'
import { OnceOnly } from 'holdfast'

// In production each instance is a separate process, on a store that all can reach.
const instances = [1, 2, 3].map((number) => new OnceOnly({ url: 'memory:mails', holderId: `instance-${number}` }))
let tries = 0

const settled = await Promise.allSettled(instances.map((jobs) => welcome(jobs, 'ada')))
for (const each of settled)
  console.log(each.status === 'fulfilled' ? each.value.receipt : `failed: ${each.reason.message}`)

// Hours later, an instance calls it again: nothing is sent, and the stored receipt is returned.
console.log((await welcome(instances[2] as OnceOnly, 'ada')).receipt)

// The same for a schedule: it fires in every instance, and each tick runs in one of them.
const cleanedUp: string[] = []
const ticks = instances.map((jobs) =>
  jobs.everyTick('clean-up', () => {
    cleanedUp.push(jobs.holderId)
  }),
)
const threeInTheMorning = new Date('2026-03-01T03:00:00Z') // a scheduler passes it
await Promise.all(ticks.map((tick) => tick(threeInTheMorning)))
console.log(`${ticks.length} instances, ${cleanedUp.length} cleaned up`)

for (const jobs of instances) await jobs.close()

function welcome(jobs: OnceOnly, user: string): Promise<{ receipt: string }> {
  const send = async ({ fencingToken }: { fencingToken: number }) => {
    tries += 1
    await sleep(20) // a call of the mail server, with `fencingToken` so that it can tell a second run from the first
    if (tries === 1 || fencingToken < 1) throw new Error('the mail server is busy')
    return { receipt: `mail to ${user}, sent at try ${tries} by ${jobs.holderId}` }
  }
  return jobs.once(`welcome:${user}`, send, { forSeconds: 86_400 })
}
