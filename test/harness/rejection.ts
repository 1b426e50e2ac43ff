/** The error that a call throws or rejects with, or undefined. */
export async function rejectionOf(call: () => unknown): Promise<unknown> {
  try {
    await call()
  } catch (error) {
    return error
  }
  return undefined
}
