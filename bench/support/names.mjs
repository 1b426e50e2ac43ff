// @ts-check

/** A limit that no slice reaches, so that only the step itself is measured. */
export const MANY = 1_000_000_000

const COUNT = 10_000

/**
 * Names in turn, distinct as long as fewer than 10,000 are in use. They are made before the measurement.
 *
 * @param {string} prefix
 */
export function namesOf(prefix) {
  const names = Array.from({ length: COUNT }, (_, index) => `${prefix}:${index}`)
  let next = 0
  return () => {
    next = next + 1 === COUNT ? 0 : next + 1
    return /** @type {string} */ (names[next])
  }
}
