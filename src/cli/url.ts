/** The store that a command works on: its option, the environment, or the embedded default. */
export const urlFrom = (option: string | undefined): string => option ?? process.env['HOLDFAST_URL'] ?? 'sqlite:'
