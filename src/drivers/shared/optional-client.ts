/**
 * Imports a client that need not be installed. Undefined if it is not; any other failure is thrown.
 *
 * The name is not a literal, because esbuild, Rollup and Rolldown ignore the comments: they would fail the build of an
 * application without the client, and put a client with a native binary into the bundle. The comments are for webpack,
 * Turbopack and Vite. So it stays an import at run time.
 */
export async function importIfThere(name: string): Promise<Record<string, unknown> | undefined> {
  try {
    return await importAtRunTime(name)
  } catch (error) {
    const { code, message = '' } = error as { code?: string; message?: string }
    if (code === 'ERR_MODULE_NOT_FOUND') return undefined
    // The CommonJS build calls `require`. A module that the client itself needs and does not find is another failure.
    if (code === 'MODULE_NOT_FOUND' && message.includes(`'${name}'`)) return undefined
    throw error
  }
}

/** In the CommonJS build, scripts/support/bundle.mjs replaces the import, which Jest does not allow there. */
export async function importAtRunTime(name: string): Promise<Record<string, unknown>> {
  return (await import(/* webpackIgnore: true */ /* turbopackIgnore: true */ /* @vite-ignore */ name)) as Record<
    string,
    unknown
  >
}
