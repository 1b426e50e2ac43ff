// An application has a client of its own, written by `prisma generate` for its models. This is what Prisma 7 generates for a schema without
// any, shortened: all that the example needs of it are transactions and raw queries.
import * as runtime from '@prisma/client/runtime/client'

declare const WebAssembly: { readonly Module: new (bytes: Uint8Array) => object }

interface RawQueries {
  $queryRawUnsafe(query: string, ...values: unknown[]): Promise<unknown>
}

interface Client extends RawQueries {
  $transaction<T>(work: (transaction: RawQueries) => Promise<T>): Promise<T>
  $disconnect(): Promise<void>
}

const config: runtime.GetPrismaClientConfig = {
  previewFeatures: [],
  clientVersion: '7.10.0',
  engineVersion: '0edf323efd1d98336f3f0a68684b56f689b900d3',
  activeProvider: 'postgresql',
  inlineSchema: 'datasource db {\n  provider = "postgresql"\n}\n',
  runtimeDataModel: { models: {}, enums: {}, types: {} },
  parameterizationSchema: { strings: [], graph: 'AAAA' },
  compilerWasm: {
    // @ts-expect-error: Prisma publishes no types for these two files; its generated code is not checked.
    getRuntime: () => import('@prisma/client/runtime/query_compiler_small_bg.postgresql.mjs'),
    async getQueryCompilerWasmModule() {
      // @ts-expect-error: as above
      const { wasm } = await import('@prisma/client/runtime/query_compiler_small_bg.postgresql.wasm-base64.mjs')
      return new WebAssembly.Module(Buffer.from(wasm, 'base64'))
    },
    importName: './query_compiler_small_bg.js',
  },
}

// The generated code casts as well: what the runtime makes is known to it only by the schema.
export const PrismaClient = runtime.getPrismaClient(config) as unknown as new (options: { adapter: object }) => Client
