import type { Driver } from '../../core/driver.ts'
import { clearInterval, setInterval } from '../../core/time/native-time.ts'

/**
 * For a driver whose connections do not keep the process alive: a call without a deadline of its own does, until it is
 * answered. Otherwise Node would end the process while the caller awaits the answer (exit code 13).
 */
export function keepingAlive(driver: Driver): Driver {
  const never = setInterval(() => {}, LONG_MS)
  never.unref()
  let inFlight = 0
  const ended = (): void => {
    inFlight -= 1
    if (inFlight === 0) never.unref()
  }
  const kept =
    <Args extends readonly unknown[], Answer>(ask: (...args: Args) => Promise<Answer>) =>
    (...args: Args): Promise<Answer> => {
      const answer = ask(...args)
      inFlight += 1
      if (inFlight === 1) never.ref()
      answer.then(ended, ended)
      return answer
    }
  return {
    ...driver,
    acquire: kept(driver.acquire),
    renew: kept(driver.renew),
    release: kept(driver.release),
    close() {
      clearInterval(never)
      return driver.close()
    },
  }
}

const LONG_MS = 2 ** 30
