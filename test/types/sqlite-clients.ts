import { type SqliteDatabase, type SqliteStatement, sqliteDriver } from 'holdfast/drivers/sqlite'
import Database from 'libsql'

// libsql's database fits, whichever parameters TypeScript infers for its statements. TypeScript 5 asks for each of them.
const database = new Database('app.db')
const fits: SqliteDatabase = database
void sqliteDriver({ database: fits })
declare const bound: Database.Statement<object>
declare const free: Database.Statement
export const boundFits: SqliteStatement = bound
export const freeFits: SqliteStatement = free
