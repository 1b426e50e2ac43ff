// @ts-check
const unused = async () => {
  throw new Error('nothing is run')
}

/**
 * How the tests of a driver in test/drivers damage its store.
 *
 * @type {Record<string, { loseData: typeof unused, restart?: typeof unused, stepClock: typeof unused }>}
 */
const damages = {
  memory: { loseData: unused, stepClock: unused },
  sqlite: { loseData: unused, stepClock: unused },
  redis: { loseData: unused, restart: unused, stepClock: unused },
  redlock: { loseData: unused, restart: unused, stepClock: unused },
  postgres: { loseData: unused, restart: unused, stepClock: unused },
}

/** @typedef {{ group: string, title: string, key: string, isSkipped: boolean }} TypeScriptCase */

/**
 * The cases of the conformance suite for a driver: their titles, collected by a runner that runs nothing.
 *
 * @param {string} driver
 * @param {boolean} [lockOnly] only those for the second client of a driver
 * @returns {Promise<TypeScriptCase[]>}
 */
export async function typescriptCases(driver, lockOnly = false) {
  const { driverConformance } = await import('../../dist/testing/index.js')
  /** @type {TypeScriptCase[]} */
  const cases = []
  /** @type {string[]} */
  const groups = []
  const record = (/** @type {string} */ title, /** @type {boolean} */ isSkipped) => {
    const group = groups.slice(1).join(': ')
    cases.push({ group, title, key: `${group}: ${title}`, isSkipped })
  }
  const it = (/** @type {string} */ title) => record(title, false)
  it.skip = (/** @type {string} */ title) => record(title.replace(/ \(skipped: .*\)$/s, ''), true)
  driverConformance({
    name: driver,
    capabilities: await capabilitiesOf(driver),
    lockOnly,
    open: unused,
    ...(damages[driver] && { breakable: { open: unused, ...damages[driver] } }),
    runner: {
      describe(title, body) {
        groups.push(title)
        body()
        groups.pop()
      },
      it,
      beforeAll() {},
      afterAll() {},
    },
  })
  return cases
}

/**
 * @param {string} driver
 * @returns {Promise<import('../../dist/core/driver.js').Capabilities>}
 */
async function capabilitiesOf(driver) {
  // Names of one group may be in different slots of a Cluster.
  if (driver === 'redis cluster') return { ...(await capabilitiesOf('redis')), groups: false }
  return (await import(`../../dist/drivers/${driver}.js`)).capabilities
}
