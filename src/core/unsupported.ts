import type { Capabilities, Driver } from './driver.ts'
import { UnsupportedError } from './errors.ts'

/** What is thrown where a driver cannot do something, with the driver's own reason where it gives one. */
export function unsupported({ name, capabilities }: Driver, what: keyof typeof missing): UnsupportedError {
  const reason = capabilities.reasons?.[what]
  return new UnsupportedError(`the ${name} driver has no ${missing[what]}${reason === undefined ? '' : `: ${reason}`}`)
}

const missing = {
  shared: 'shared mode',
  limit: 'limits, so there are no semaphores on it',
  rate: 'rate limits',
  steal: 'way to take a lock from its holder',
} satisfies Record<keyof NonNullable<Capabilities['reasons']>, string>
