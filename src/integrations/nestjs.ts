import { Module } from '@nestjs/common'
import { checkFunction } from '../core/arguments.ts'
import { checkObject, checkOptions, optionNames } from '../core/options.ts'
import type { CloseOptions } from '../primitives/instance.ts'
import { INSTANCE_OPTIONS, type InstanceOptions } from '../primitives/instance-options.ts'
import { DistributedLock } from '../primitives/lock/any-store-lock.ts'
import type { DistributedLockOptions } from '../primitives/lock/distributed-lock.ts'
import { OnceOnly } from '../primitives/once/once-only.ts'
import { closingOf } from './closing.ts'
import { type HealthReport, type HealthTarget, healthCheck } from './health.ts'

export type { HealthReport } from './health.ts'
export { currentLease, Locked, type LockedDecorator, type LockedOptions } from './nestjs/locked.ts'
export { LockedCron, type LockedCronOptions } from './nestjs/locked-cron.ts'

export interface HoldfastModuleOptions extends DistributedLockOptions {
  /**
   * How the lock is closed when the application shuts down. Requests that run, and other work under a lease, have
   * `drainSeconds` to end.
   *
   * @default 10 for `drainSeconds`, 5 for `deadlineSeconds`
   */
  close?: CloseOptions
}

export interface HoldfastAsyncOptions<Import, Token, Args extends unknown[]> {
  /** Modules that export what `inject` names. */
  imports?: Import[]
  /** What Nest passes to `useFactory`. */
  inject?: Token[]
  useFactory: (...args: Args) => HoldfastModuleOptions | Promise<HoldfastModuleOptions>
}

/** A provider, as Nest takes it. */
export interface HoldfastProvider<Token> {
  provide: symbol | typeof DistributedLock | typeof OnceOnly | typeof HoldfastHealth
  useFactory: (...args: never[]) => unknown
  inject: (Token | symbol | typeof DistributedLock | typeof OnceOnly)[]
}

/** A dynamic module, as Nest takes it. It imports another one, which is global. */
export interface HoldfastModuleDefinition<Import, Token> {
  module: typeof HoldfastModule
  imports: [
    {
      module: new () => object
      global: true
      imports: Import[]
      providers: HoldfastProvider<Token>[]
      exports: (symbol | typeof DistributedLock | typeof OnceOnly | typeof HoldfastHealth)[]
    },
  ]
  providers: HoldfastProvider<never>[]
}

const ASYNC_OPTIONS = optionNames<HoldfastAsyncOptions<unknown, unknown, unknown[]>>({
  imports: true,
  inject: true,
  useFactory: true,
})

/**
 * Provides a `DistributedLock`, an `OnceOnly` and a `HoldfastHealth` to all modules of a Nest application, and what
 * `@Locked` and `@LockedCron` need. Each application has its own. They are closed when the application shuts down,
 * after the HTTP server has answered its last request, or after `drainSeconds`. Call `app.enableShutdownHooks()` so
 * that `SIGTERM` does that.
 *
 * @example
 * ```ts
 * @Module({ imports: [HoldfastModule.forRoot({ url: 'redis://localhost:6379' })] })
 * class AppModule {}
 * ```
 */
// biome-ignore lint/complexity/noStaticOnlyClass: Nest identifies a module by its class.
export class HoldfastModule {
  /**
   * Takes the options of `DistributedLock`, and `close`.
   *
   * @throws `InvalidArgumentError` for options that are not an object. The others are checked when the application
   * starts
   */
  static forRoot(options: HoldfastModuleOptions = {}): HoldfastModuleDefinition<never, never> {
    // Null, as from a missing configuration, must not select the default store.
    checkObject(options)
    return definition<never, never>([], { provide: OPTIONS, useFactory: () => options, inject: [] })
  }

  /**
   * As `forRoot`, with options that are made from other providers, such as a configuration service.
   *
   * @throws `InvalidArgumentError`
   */
  static forRootAsync<Import = never, Token = never, Args extends unknown[] = never[]>(
    options: HoldfastAsyncOptions<Import, Token, Args>,
  ): HoldfastModuleDefinition<Import, Token> {
    const { imports = [], inject = [], useFactory } = checkOptions(options, ASYNC_OPTIONS)
    checkFunction('useFactory', useFactory)
    return definition(imports, { provide: OPTIONS, useFactory, inject })
  }
}

Module({})(HoldfastModule)

/**
 * Reports whether the store works and the application is not shutting down. `HoldfastModule` provides it.
 *
 * @example
 * ```ts
 * const report = await health.check()
 * if (report.status === 'down') throw new ServiceUnavailableException(report)
 * ```
 */
export class HoldfastHealth {
  readonly #check: () => Promise<HealthReport>

  /** @internal */
  constructor(lock: HealthTarget) {
    this.#check = healthCheck(lock)
  }

  /** Never rejects. Calls that overlap share one ping of the store, which has two seconds to answer. */
  check(): Promise<HealthReport> {
    return this.#check()
  }

  /** The same for `@nestjs/terminus`: `health.check([() => holdfast.isHealthy('locks')])`. */
  async isHealthy<Key extends string>(key: Key): Promise<Record<Key, HealthReport>> {
    return { [key]: await this.#check() } as Record<Key, HealthReport>
  }
}

/** What is provided to all modules. */
class HoldfastGlobalModule {}

Module({})(HoldfastGlobalModule)

const OPTIONS = Symbol('holdfast.options')
const CLOSING = Symbol('holdfast.closing')

function definition<Import, Token>(
  imports: Import[],
  options: HoldfastProvider<Token>,
): HoldfastModuleDefinition<Import, Token> {
  const provided = {
    module: HoldfastGlobalModule,
    global: true as const,
    imports,
    providers: [
      options,
      { provide: DistributedLock, useFactory: lockFrom, inject: [OPTIONS] },
      { provide: OnceOnly, useFactory: jobsFrom, inject: [OPTIONS] },
      {
        provide: HoldfastHealth,
        useFactory: (lock: DistributedLock) => new HoldfastHealth(lock),
        inject: [DistributedLock],
      },
    ],
    exports: [DistributedLock, OnceOnly, HoldfastHealth, OPTIONS],
  }
  // Nest shuts global modules down last. A module that was imported for its client would have closed that before, and
  // the locks would stay until they expire.
  const closing = { provide: CLOSING, useFactory: closingHooks, inject: [DistributedLock, OnceOnly, OPTIONS] }
  return { module: HoldfastModule, imports: [provided], providers: [closing] }
}

function lockFrom(options: HoldfastModuleOptions): DistributedLock {
  checkObject(options)
  const { close: _, ...lockOptions } = options
  return new DistributedLock(lockOptions)
}

function jobsFrom(options: HoldfastModuleOptions): OnceOnly {
  checkObject(options)
  const own = Object.entries(options).filter(([name]) => Object.hasOwn(INSTANCE_OPTIONS, name))
  return new OnceOnly(Object.fromEntries(own) as InstanceOptions)
}

/** Nest calls the first before the HTTP server stops, and the second after its last response. */
function closingHooks(lock: DistributedLock, jobs: OnceOnly, { close }: HoldfastModuleOptions): object {
  const closing = closingOf([jobs, lock], close)
  return {
    beforeApplicationShutdown: () => closing.begin(),
    onApplicationShutdown: () => {
      closing.served()
      return closing.done()
    },
  }
}
