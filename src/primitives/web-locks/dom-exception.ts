/** A `DOMException` with a `cause`, which those of the platform do not have. */
export function domException(name: string, message: string, cause?: unknown): DOMException {
  const exception = new DOMException(message, name)
  if (cause !== undefined)
    Object.defineProperty(exception, 'cause', { value: cause, configurable: true, writable: true })
  return exception
}
