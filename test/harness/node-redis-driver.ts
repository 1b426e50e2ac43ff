import type { Driver } from '../../src/core/driver.ts'
import { MissingClientError } from '../../src/core/errors.ts'
import { openNodeRedis } from '../../src/drivers/redis/open-node-redis.ts'
import { redisUrl } from '../../src/drivers/redis/url.ts'
import { redisDriver } from '../../src/drivers/redis.ts'

/** Opens a driver with node-redis, although ioredis is installed, too. */
export async function viaNodeRedis(url: string): Promise<Driver> {
  const { target, prefix } = redisUrl(url)
  const opened = await openNodeRedis(target, {})
  if (opened === undefined) throw new MissingClientError('the test', ['redis'])
  const driver = redisDriver({ client: opened.client, prefix, onWarning: () => {} })
  return {
    ...driver,
    async close() {
      await driver.close()
      await opened.close()
    },
  }
}
