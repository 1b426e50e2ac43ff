import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { checkMethods } from '../core/arguments.ts'
import { warnOfFault } from '../core/call-listener.ts'
import { InvalidArgumentError } from '../core/errors.ts'
import type { LockEvent, LockEvents } from '../core/events.ts'
import { isArray } from '../core/options.ts'
import type { Templates } from './templates.ts'

/** What both kinds of telemetry take. */
export interface TelemetryOptions {
  /**
   * How lock names, and keys of rate limiters, become labels: patterns such as `order:{id}`, where `{id}` is one or
   * more characters except `:`, or a function. Everything else is "other". At most 100 templates: what a function
   * returns beyond them is "other", too.
   *
   * @default none: everything is "other"
   */
  templates?: Templates
  /**
   * Locks, limiters and other instances to observe.
   *
   * @default all of this process, also those that are created later
   */
  instances?: readonly ObservedInstance[]
}

/** The same options before they have been checked. */
export type Unchecked = { readonly [Name in keyof TelemetryOptions]?: unknown }

/** An instance of Holdfast, by the method that is used. */
export interface ObservedInstance {
  on<E extends LockEvent>(event: E, listener: (event: LockEvents[E]) => void): () => void
}

export type Handlers = { readonly [E in LockEvent]?: (event: LockEvents[E]) => void }

/**
 * Calls the handlers at the events of the instances, or of the whole process. Returns a function that ends it.
 *
 * @throws `InvalidArgumentError`
 */
export function listen(handlers: Handlers, instances: unknown): () => void {
  const events = Object.keys(handlers) as LockEvent[]
  const sources = instances === undefined ? [channels] : checkInstances(instances)
  const stops = sources.flatMap((source) => events.map((event) => source.on(event, safely(handlers, event))))
  return () => {
    for (const stop of stops.splice(0)) stop()
  }
}

function checkInstances(instances: unknown): readonly ObservedInstance[] {
  if (!isArray(instances)) throw new InvalidArgumentError('instances', instances, 'a list')
  instances.forEach((source, index) => {
    checkMethods(`instances[${index}]`, source, ['on'], 'a lock or another instance of Holdfast')
  })
  return instances as readonly ObservedInstance[]
}

/** The events of the whole process. */
const channels: ObservedInstance = {
  on(event, listener) {
    const subscriber = (message: unknown): void => listener(message as LockEvents[typeof event])
    subscribe(`holdfast:${event}`, subscriber)
    return () => void unsubscribe(`holdfast:${event}`, subscriber)
  },
}

/** Node turns an error of a channel's subscriber into an uncaught exception, which would end the process. */
function safely<E extends LockEvent>(handlers: Handlers, event: E): (event: LockEvents[E]) => void {
  const handler = handlers[event] as (event: LockEvents[E]) => void
  return (payload) => {
    try {
      handler(payload)
    } catch (error) {
      warnOfFault(`the telemetry of "${event}"`, error)
    }
  }
}
