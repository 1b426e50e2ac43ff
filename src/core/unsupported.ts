import type { Capabilities, Driver } from './driver.ts'
import { UnsupportedError } from './errors.ts'

/** The error for an operation that the driver does not support, with the driver's reason if it gives one. */
export function unsupported({ name, capabilities }: Driver, what: keyof typeof missing): UnsupportedError {
  const reason = capabilities.reasons?.[what]
  return new UnsupportedError(
    `the ${name} driver does not support ${missing[what]}${reason === undefined ? '' : `: ${reason}`}`,
  )
}

const missing = {
  shared: 'shared mode',
  limit: 'limits, which semaphores need',
  rate: 'rate limits',
  force: 'taking a lock from its holder in one step',
} satisfies Record<keyof NonNullable<Capabilities['reasons']>, string>
