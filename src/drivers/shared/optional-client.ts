/**
 * Imports a client that need not be installed. Undefined if it is not; any other failure is thrown.
 *
 * The name is not a literal, and the comments are for webpack and Vite: a bundler that resolves the name would fail the
 * build of an application without the client. So it stays an import at run time.
 */
export async function importIfThere(name: string): Promise<Record<string, unknown> | undefined> {
  try {
    return await importAtRunTime(name)
  } catch (error) {
    if ((error as { code?: string }).code === 'ERR_MODULE_NOT_FOUND') return undefined
    throw error
  }
}

export async function importAtRunTime(name: string): Promise<Record<string, unknown>> {
  return (await import(/* webpackIgnore: true */ /* @vite-ignore */ name)) as Record<string, unknown>
}
