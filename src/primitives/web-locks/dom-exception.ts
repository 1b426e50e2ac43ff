/** A `DOMException` of this name. `cause` is ours: the platform's own have none. */
export function domException(name: string, message: string, cause?: unknown): DOMException {
  const exception = new DOMException(message, name)
  if (cause !== undefined)
    Object.defineProperty(exception, 'cause', { value: cause, configurable: true, writable: true })
  return exception
}
