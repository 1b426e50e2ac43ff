import 'reflect-metadata'
import { randomUUID } from 'node:crypto'
import { Controller, Get, type INestApplication, Inject, Injectable, Module, Param } from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import { Redis } from 'ioredis'
import { afterEach, describe, expect, inject, it } from 'vitest'
import { redisDriver } from '../../src/drivers/redis.ts'
import {
  ClosedError,
  DistributedLock,
  InvalidArgumentError,
  LeaseLostError,
  NotAcquiredError,
} from '../../src/index.ts'
import {
  currentLease,
  HoldfastHealth,
  HoldfastModule,
  type HoldfastModuleOptions,
  Locked,
  LockedCron,
} from '../../src/integrations/nestjs.ts'
import { gate } from '../harness/gate.ts'
import { rejectionOf } from '../harness/rejection.ts'
import { startRedis } from '../harness/servers.ts'

const [url = ''] = inject('servers').redis ?? []

const ending: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ending.splice(0).reverse()) await end()
})

@Injectable()
class OrderService {
  @Inject(DistributedLock) readonly lock!: DistributedLock

  @Locked('nest:order:{0}')
  async ship<T>(_id: string, work: () => Promise<T>): Promise<T> {
    return work()
  }

  @Locked('nest:order:{0.id}', { blockingTimeoutSeconds: 20 })
  async shipInTurn<T>({ work }: { id: string; work: () => Promise<T> }): Promise<T> {
    return work()
  }

  @Locked((_work: () => unknown, id: string | number) => `nest:order:${id}`)
  async shipNamed(work: () => unknown, _id: string): Promise<unknown> {
    return work()
  }
}

@Controller('orders')
class OrderController {
  @Inject(OrderService) readonly orders!: OrderService

  // Above the decorator of the route: what that one attached to the method must not get lost.
  @Locked('nest:page:{0}')
  @Get(':id')
  async show(@Param('id') id: string): Promise<object> {
    return { id, lockName: currentLease().lockName }
  }
}

async function start(
  options: HoldfastModuleOptions = { url },
): Promise<{ app: INestApplication; orders: OrderService }> {
  @Module({
    imports: [HoldfastModule.forRoot(options)],
    controllers: [OrderController],
    providers: [OrderService],
  })
  class AppModule {}
  const app = await NestFactory.create(AppModule, { logger: false, abortOnError: false })
  ending.push(() => app.close())
  return { app, orders: app.get(OrderService) }
}

/** A call that has its lock, and ends when `end` is called. */
async function running(orders: OrderService, id: string) {
  const [begun, ended] = [gate(), gate()]
  const result = orders.ship(id, async () => {
    const lease = currentLease()
    begun.open()
    await ended.opened
    return lease
  })
  result.catch(() => undefined)
  await Promise.race([begun.opened, result])
  return { result, end: () => ended.open() }
}

describe('a method with @Locked', () => {
  it('excludes itself across two applications on one store, and runs again when the first call has ended', async () => {
    const [a, b] = [await start(), await start()]
    expect(a.orders.lock.holderId).not.toBe(b.orders.lock.holderId)
    const id = randomUUID()
    const first = await running(a.orders, id)
    const refused = await rejectionOf(() => b.orders.ship(id, async () => 'shipped twice'))
    expect(refused).toBeInstanceOf(NotAcquiredError)
    expect((refused as NotAcquiredError).holder?.holderId).toBe(a.orders.lock.holderId)
    expect(await b.orders.ship(randomUUID(), async () => 'another order')).toBe('another order')

    const waiting = b.orders.shipInTurn({ id, work: async () => 'shipped next' })
    first.end()
    expect((await first.result).lockName).toBe(`nest:order:${id}`)
    expect(await waiting).toBe('shipped next')
    expect(await a.orders.shipNamed(() => 'and again', id)).toBe('and again')
  })

  it('passes on the error of the method, and releases the lock', async () => {
    const { orders } = await start()
    const id = randomUUID()
    const fault = new Error('out of paper')
    expect(await rejectionOf(() => orders.ship(id, () => Promise.reject(fault)))).toBe(fault)
    expect(await orders.lock.isLocked(`nest:order:${id}`)).toBe(false)
  })

  it('rejects with LeaseLostError if the lease was lost, and its signal aborts', async () => {
    const { orders } = await start()
    const id = randomUUID()
    const lost = orders.ship(id, async () => {
      const { signal } = currentLease()
      const aborted = new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
      await orders.lock.forceRelease(`nest:order:${id}`, { by: 'a test' })
      await aborted
    })
    expect(await rejectionOf(() => lost)).toBeInstanceOf(LeaseLostError)
  })

  it('refuses hostile arguments before anything is sent', async () => {
    const { orders } = await start()
    for (const id of ['a\nb', '', 'x'.repeat(300), { toString: () => 'id' } as unknown as string]) {
      const refused = await rejectionOf(() => orders.ship(id, async () => 'ran'))
      expect(refused).toBeInstanceOf(InvalidArgumentError)
      expect((refused as Error).message).toContain('{0} of OrderService.ship must be a string of 1 to 255')
    }
  })

  it('may be a route, with the decorator of the route below it', async () => {
    const { app } = await start()
    await app.listen(0, '127.0.0.1')
    const response = await fetch(`${await app.getUrl()}/orders/7`)
    expect([response.status, await response.json()]).toEqual([200, { id: '7', lockName: 'nest:page:7' }])
  })

  it('keeps the name and the length of the method', () => {
    const { name, length } = OrderService.prototype.ship
    expect([name, length]).toEqual(['ship', 2])
  })

  it('needs an instance that Nest has made', async () => {
    const refused = await rejectionOf(() => new OrderService().ship('1', async () => 'ran without a lock'))
    expect(String(refused)).toContain('OrderService.ship must be called on an instance that Nest has made')
    const { ship } = (await start()).orders
    expect(await rejectionOf(() => ship('1', async () => 'ran without a lock'))).toBeInstanceOf(InvalidArgumentError)
    expect(currentLease).toThrow('currentLease() must be called inside a method with @Locked')
  })
})

describe('a class with a mistake in @Locked', () => {
  it('is refused when it is defined', () => {
    expect(() => Locked('order', { blocking: 'yes' as never })).toThrow('blocking must be true or false')
    expect(() => Locked('order', { ttl: 5 } as never)).toThrow('did you mean timeoutSeconds?')
    expect(() => Locked('order', { timeoutSeconds: 0 })).toThrow('timeoutSeconds must be')
    expect(() => {
      class Broken {
        @Locked('order:{id}')
        async ship(_id: string): Promise<void> {}
      }
      return Broken
    }).toThrow('the template of @Locked on Broken.ship must be made of text and placeholders')
    expect(() => {
      class Broken {
        readonly id = 1
        @Locked('order')
        static async ship(): Promise<void> {}
      }
      return Broken
    }).toThrow('@Locked must be on a method that is not static')
  })

  it('is refused by the compiler if the method is not async, or lacks an argument of the name', () => {
    class Broken {
      // @ts-expect-error: it returns no promise
      @Locked('order')
      now(): number {
        return 1
      }

      // @ts-expect-error: the name needs a string
      @Locked((id: string) => id)
      async later(_id: number): Promise<void> {}
    }
    expect(Broken).toBeDefined()
  })
})

describe('an application', () => {
  it('without HoldfastModule does not start, if a class has a method with @Locked', async () => {
    @Module({ providers: [OrderService] })
    class AppModule {}
    const failed = rejectionOf(() => NestFactory.create(AppModule, { logger: false, abortOnError: false }))
    expect(String(await failed)).toContain('DistributedLock')
  })

  it('with wrong options does not start', async () => {
    for (const options of [
      { url: '' },
      { url, close: { drainSeconds: -1 } },
      { uri: url },
      { url, close: { drain: 1 } },
    ]) {
      expect(await rejectionOf(() => start(options as HoldfastModuleOptions))).toBeInstanceOf(InvalidArgumentError)
    }
    expect(() => HoldfastModule.forRoot(null as never)).toThrow(InvalidArgumentError)
  })

  it('takes its options from other providers with forRootAsync', async () => {
    @Module({ providers: [{ provide: 'STORE', useValue: url }], exports: ['STORE'] })
    class ConfigModule {}
    @Module({
      imports: [
        HoldfastModule.forRootAsync({
          imports: [ConfigModule],
          inject: ['STORE'],
          useFactory: async (store: string) => ({ url: store, holderId: 'configured' }),
        }),
      ],
      providers: [OrderService],
    })
    class AppModule {}
    const app = await NestFactory.create(AppModule, { logger: false, abortOnError: false })
    ending.push(() => app.close())
    expect(await app.get(OrderService).ship(randomUUID(), async () => currentLease().holderId)).toBe('configured')
  })

  it.each([false, true])('that shuts down closes the lock before its client (global: %s)', async (global) => {
    class Client {
      readonly redis = new Redis(url, { lazyConnect: true })
      // Not `onModuleDestroy`, which Nest calls before it stops the server.
      async onApplicationShutdown(): Promise<void> {
        await this.redis.quit()
      }
    }
    @Module({ providers: [Client], exports: [Client] })
    class ClientModule {}
    const clients = { module: ClientModule, global }
    const holdfast = HoldfastModule.forRootAsync({
      imports: [clients],
      inject: [Client],
      useFactory: ({ redis }: Client) => ({ driver: redisDriver({ client: redis }), close: { drainSeconds: 0.2 } }),
    })
    @Module({ imports: [clients, holdfast], providers: [OrderService] })
    class AppModule {}
    const app = await NestFactory.create(AppModule, { logger: false, abortOnError: false })
    ending.push(() => app.close())
    const lock = app.get(DistributedLock)
    const events: string[] = []
    lock.on('released', () => events.push('released'))
    lock.on('releaseFailed', () => events.push('releaseFailed'))
    await lock.hold(`nest:${randomUUID()}`)
    await app.close()
    expect(events).toEqual(['released'])
  })

  it('that shuts down lets running calls end, rejects new ones, and leaves its locks free', async () => {
    const [a, b] = [await start({ url, close: { drainSeconds: 30 } }), await start()]
    const ids = Array.from({ length: 20 }, () => randomUUID())
    const calls = await Promise.all(ids.map((id) => running(a.orders, id)))
    const waiting = rejectionOf(() => a.orders.shipInTurn({ id: ids[0] ?? '', work: async () => 'waited' }))
    const closing = a.app.close()
    // Without an HTTP server to wait for, closing begins at once: it gives up what waits.
    expect(await waiting).toBeInstanceOf(ClosedError)
    expect(await rejectionOf(() => a.orders.ship(randomUUID(), async () => 'too late'))).toBeInstanceOf(ClosedError)
    expect(await rejectionOf(() => b.orders.ship(ids[0] ?? '', async () => 'too early'))).toBeInstanceOf(
      NotAcquiredError,
    )
    for (const { end } of calls) end()
    for (const { result } of calls) expect((await result).lockName).toContain('nest:order:')
    await closing
    expect(await Promise.all(ids.map((id) => b.orders.ship(id, async () => 'free')))).toEqual(ids.map(() => 'free'))
  })

  it('that shuts down aborts the signal of a call that outlasts drainSeconds', async () => {
    const { app, orders } = await start({ url, close: { drainSeconds: 0.05 } })
    const begun = gate()
    const hanging = orders.ship(randomUUID(), async () => {
      const { signal } = currentLease()
      begun.open()
      await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }))
    })
    const outcome = rejectionOf(() => hanging)
    await begun.opened
    await app.close()
    expect(await outcome).toBeInstanceOf(LeaseLostError)
  })
})

describe('@LockedCron', () => {
  it('runs a tick on one instance, resolves on the others, and keeps what @Cron has attached', async () => {
    const name = `nest-${randomUUID()}`
    const Schedule: MethodDecorator = (_target, _key, descriptor: PropertyDescriptor) => {
      Reflect.defineMetadata('schedule', 'daily', descriptor.value)
    }
    @Injectable()
    class Reports {
      runs = 0

      @LockedCron(name, { everySeconds: 86_400 })
      @Schedule
      async report(): Promise<unknown> {
        this.runs += 1
        return 'written'
      }
    }
    const instances = await Promise.all(
      [1, 2].map(async () => {
        @Module({ imports: [HoldfastModule.forRoot({ url })], providers: [Reports] })
        class AppModule {}
        const app = await NestFactory.createApplicationContext(AppModule, { logger: false, abortOnError: false })
        ending.push(() => app.close())
        return { app, reports: app.get(Reports) }
      }),
    )
    const [first, second] = instances.map(({ reports }) => reports)
    expect(await first?.report()).toEqual({ ran: true, result: 'written' })
    expect(await second?.report()).toEqual({ ran: false, reason: 'elsewhere' })
    expect([first?.runs, second?.runs]).toEqual([1, 0])
    expect(Reflect.getMetadata('schedule', Reports.prototype.report)).toBe('daily')
    await instances[1]?.app.close()
    expect(await second?.report()).toEqual({ ran: false, reason: 'closed' })
    expect(() => LockedCron(name, {} as never)).toThrow('everySeconds must be')
  })
})

describe('the health of an application', () => {
  it('is up, then down with a reason when the server has stopped', async () => {
    await using redis = await startRedis()
    const { app } = await start({ url: redis.url, close: { drainSeconds: 0, deadlineSeconds: 0.1 } })
    const health = app.get(HoldfastHealth)
    // Opening a connection on a busy machine may take longer than a health check waits.
    await app.get(DistributedLock).ping()
    expect(await health.isHealthy('locks')).toEqual({ locks: { status: 'up' } })
    await redis.kill()
    expect(await health.check()).toEqual({ status: 'down', code: 'STORE_UNAVAILABLE', reason: expect.any(String) })
  })

  it('is down as soon as the application shuts down', async () => {
    const { app, orders } = await start()
    const health = app.get(HoldfastHealth)
    await orders.lock.ping()
    expect(await health.check()).toEqual({ status: 'up' })
    await app.close()
    expect(await health.check()).toMatchObject({ status: 'down', code: 'CLOSED' })
  })
})
