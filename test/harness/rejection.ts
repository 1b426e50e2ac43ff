/** What a call throws or rejects with; undefined if it does neither. */
export async function rejectionOf(call: () => unknown): Promise<unknown> {
  try {
    await call()
  } catch (error) {
    return error
  }
  return undefined
}
