// A Nest application: methods under a lock, the status 409 for an order that another request is shipping, and a health
// page. Nest needs "experimentalDecorators" in tsconfig.json.
import 'reflect-metadata'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  type ArgumentsHost,
  Catch,
  Controller,
  type ExceptionFilter,
  Get,
  Inject,
  Injectable,
  Module,
  Param,
  Post,
  ServiceUnavailableException,
} from '@nestjs/common'
import { NestFactory } from '@nestjs/core'
import type { Response } from 'express'
import { DistributedLock, NotAcquiredError } from 'holdfast'
import { currentLease, HoldfastHealth, HoldfastModule, Locked } from 'holdfast/nestjs'

@Injectable()
class ShippingService {
  @Locked('order:{0}')
  async ship(orderId: string): Promise<string> {
    const { lockName, signal } = currentLease()
    await sleep(100, undefined, { signal })
    return `order ${orderId} shipped under ${lockName}`
  }
}

@Controller()
class AppController {
  constructor(
    @Inject(ShippingService) private readonly shipping: ShippingService,
    @Inject(HoldfastHealth) private readonly health: HoldfastHealth,
  ) {}

  @Post('orders/:id/ship')
  ship(@Param('id') id: string): Promise<string> {
    return this.shipping.ship(id)
  }

  @Get('healthz')
  async healthz(): Promise<object> {
    const report = await this.health.check()
    if (report.status === 'down') throw new ServiceUnavailableException(report)
    return report
  }
}

@Catch(NotAcquiredError)
class BusyFilter implements ExceptionFilter {
  catch(error: NotAcquiredError, host: ArgumentsHost): void {
    host.switchToHttp().getResponse<Response>().status(409).json({ error: 'busy', lockName: error.lockName })
  }
}

@Module({
  imports: [HoldfastModule.forRoot({ url: 'memory:shipping', close: { drainSeconds: 10 } })],
  controllers: [AppController],
  providers: [ShippingService],
})
class AppModule {}

const app = await NestFactory.create(AppModule, { logger: ['error'] })
app.useGlobalFilters(new BusyFilter())
app.enableShutdownHooks() // SIGTERM closes the application, and with it the lock
await app.listen(0, '127.0.0.1')
const url = await app.getUrl()

const ship = (order: number) => fetch(`${url}/orders/${order}/ship`, { method: 'POST' })

// Another instance of the service is shipping order 1.
const another = new DistributedLock({ url: 'memory:shipping' })
await another.withLock('order:1', async () => {
  for (const answer of [await ship(1), await ship(2)]) console.log(answer.status, await answer.text())
})
await another.close()
console.log(await (await fetch(`${url}/healthz`)).text())

// A request that runs when the application shuts down is answered.
const locked = new Promise((resolve) => app.get(DistributedLock).on('acquired', resolve))
const last = ship(3)
await locked
await app.close()
console.log(await (await last).text())
