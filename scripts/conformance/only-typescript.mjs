// @ts-check
/**
 * Cases of the TypeScript suite that the Python suite does not have, and why. `npm run conformance` prints them.
 *
 * @type {readonly { group: RegExp, driver?: RegExp, titles?: readonly string[], reason: string }[]}
 */
const exceptions = [
  {
    group: /^driver interface: a damaged store$/,
    driver: /^(?:redis|redlock|postgres)$/,
    reason:
      'What a server does after it lost its data, was restarted or had its clock set is decided by the Lua and SQL ' +
      'of protocol/, which both clients send as they are',
  },
  {
    group: /^driver interface: wake-ups$/,
    titles: ['rule 15: a grant in a notification is proved by the newest call, and by no other'],
    reason: 'In Python the drivers check the proof themselves. Their own tests show it',
  },
  {
    group: /^(?:readers and writers|semaphores|several locks at once|DistributedLock: (?!released by|a lease that).*)$/,
    reason: 'They are about the API of an instance, which differs between the languages. python/tests has its own',
  },
  { group: /^mutex by LockManager/, reason: 'Web Locks are an interface of JavaScript' },
]

/**
 * Undefined if the case must exist in Python.
 *
 * @param {string} driver
 * @param {string} group
 * @param {string} title
 */
export const withoutCounterpart = (driver, group, title) =>
  exceptions.find(
    (each) => each.group.test(group) && (each.driver?.test(driver) ?? true) && (each.titles?.includes(title) ?? true),
  )?.reason
