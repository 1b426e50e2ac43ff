import { type SqliteDatabase, type SqliteStatement, sqliteDriver } from 'holdfast/drivers/sqlite'
import Database from 'libsql'

// libsql's database fits, with any parameters that TypeScript infers for its statements. TypeScript 5 checks each of
// them.
const database = new Database('app.db')
const fits: SqliteDatabase = database
void sqliteDriver({ database: fits })
declare const bound: Database.Statement<object>
declare const free: Database.Statement
export const boundFits: SqliteStatement = bound
export const freeFits: SqliteStatement = free
