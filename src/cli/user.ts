import { hostname, userInfo } from 'node:os'

/** Who runs this command, for records. */
export const userAtHost = (): string => `${userName()}@${hostname()}`

/** A container may run as a user that has no name. */
function userName(): string {
  try {
    return userInfo().username
  } catch {
    return `uid ${process.getuid?.() ?? 'unknown'}`
  }
}
