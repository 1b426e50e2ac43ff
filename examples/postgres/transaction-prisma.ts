// A lock that lasts exactly as long as your own transaction, with Prisma.
// DATABASE_URL=postgres://… npm run example postgres/transaction-prisma

import { PrismaPg } from '@prisma/adapter-pg'
import { lockInTransaction, tryLockInTransaction } from 'holdfast/drivers/postgres-advisory'
import { PrismaClient } from './prisma-client.js'

const url = process.env['DATABASE_URL'] ?? 'postgres://postgres@127.0.0.1:5432/postgres'
const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) })

await prisma.$transaction(async (mine) => {
  await lockInTransaction(mine, 'invoice:2026')
  console.log('acquired')
  console.log(`another transaction meanwhile: ${await tryIt()}`)
})
console.log(`after the commit: ${await tryIt()}`)

await prisma
  .$transaction(async (mine) => {
    await lockInTransaction(mine, 'invoice:2026')
    throw new Error('no such customer')
  })
  .catch((error: Error) => console.log(`rolled back: ${error.message}`))
console.log(`after the rollback: ${await tryIt()}`)
await prisma.$disconnect()

/** Returns false if another transaction holds the lock. */
function tryIt(): Promise<boolean> {
  return prisma.$transaction((another) => tryLockInTransaction(another, 'invoice:2026'))
}
