/** Values that a user's code or a client can throw or return, and that fail when they are read, each by its name. */
export function unreadableValues(): Record<string, unknown> {
  const refuse = (): never => {
    throw new Error('unreadable')
  }
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  const message = Object.defineProperty(new Error(), 'message', { get: refuse })
  const stack = Object.defineProperty(new Error('with a stack'), 'stack', { get: refuse })
  const cyclic = new Error('cyclic')
  cyclic.cause = cyclic
  const everything = { get: refuse, has: refuse, ownKeys: refuse, getOwnPropertyDescriptor: refuse }
  return {
    'an object without a prototype': Object.create(null),
    'an object with a toString that throws': { toString: refuse },
    'an object whose toString returns an object': { toString: () => ({}) },
    'a proxy that was revoked': proxy,
    'a proxy that refuses everything': new Proxy(new Error(), { ...everything, getPrototypeOf: refuse }),
    'a proxy of an error': new Proxy(new Error(), everything),
    'an error whose message throws': message,
    'an error whose message is an object': Object.assign(new Error(), { message: Object.create(null) }),
    'an error whose stack throws': stack,
    'an error that is its own cause': cyclic,
    'a symbol': Symbol('thrown'),
  }
}
