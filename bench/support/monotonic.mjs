// @ts-check

/** The machine's monotonic clock, which all its processes share. */
export const nowMicros = () => Number(process.hrtime.bigint() / 1_000n)
