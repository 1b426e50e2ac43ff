import { Inject } from '@nestjs/common'
import { InvalidArgumentError } from '../../core/errors.ts'

/** A method of a class that Nest makes, and the provider of `HoldfastModule` that its decorator needs. */
interface Decorated<Provider> {
  readonly target: object
  readonly key: string | symbol
  readonly descriptor: PropertyDescriptor | undefined
  readonly provider: abstract new (...args: never[]) => Provider
  /** Nest sets it on each instance of the class. */
  readonly property: symbol
}

/** Makes calls of a method go through `call`, which gets the provider that Nest injects and calls `method`. */
export function decorate<Provider>(
  name: string,
  { target, key, descriptor, provider, property }: Decorated<Provider>,
  call: (provider: Provider, args: readonly unknown[], method: () => unknown, instance: object) => Promise<unknown>,
): void {
  const method: unknown = descriptor?.value
  if (descriptor === undefined || typeof target !== 'object' || typeof method !== 'function') {
    const rule = 'on a method that is not static, and needs experimentalDecorators in tsconfig.json'
    throw new InvalidArgumentError(name, target, rule, `${name} must be ${rule}`)
  }
  const where = `${target.constructor.name}.${String(key)}`
  // An application without HoldfastModule fails when it starts, not at the first call.
  Inject(provider)(target, property)
  const decorated = async function (this: Record<symbol, unknown> | undefined, ...args: unknown[]): Promise<unknown> {
    const injected = this?.[property] as Provider | undefined
    if (injected === undefined || this === undefined) {
      const rule = 'called on an instance that Nest has made, in an application with HoldfastModule'
      throw new InvalidArgumentError(where, undefined, rule, `${where} must be ${rule}`)
    }
    return call(injected, args, () => Reflect.apply(method, this, args), this)
  }
  descriptor.value = Object.defineProperties(decorated, {
    name: { value: method.name, configurable: true },
    length: { value: method.length, configurable: true },
  })
  copyMetadata(method, decorated)
}

/**
 * Other decorators, such as `@Get` or `@Cron`, attach what they say to the function. If this one is above them, they
 * have attached it to the original, where Nest no longer looks: the route or the schedule would silently not exist.
 */
function copyMetadata(from: object, to: object): void {
  const { getMetadataKeys, getMetadata, defineMetadata } = Reflect as unknown as MetadataReflection
  for (const key of getMetadataKeys(from)) defineMetadata(key, getMetadata(key, from), to)
}

/** What the package reflect-metadata, which Nest requires, adds to `Reflect`. */
interface MetadataReflection {
  getMetadataKeys(target: object): unknown[]
  getMetadata(key: unknown, target: object): unknown
  defineMetadata(key: unknown, value: unknown, target: object): void
}
