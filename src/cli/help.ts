import { exitCodes } from './exit-codes.ts'

/** The help of one command, or the overview. */
export function helpFor(command: string | undefined): string {
  return (command !== undefined && Object.hasOwn(texts, command) ? texts[command] : undefined) ?? overview
}

const STORE = `  --url URL         the store: sqlite:PATH, postgres://…, redis://…, redlock://…
                    (default: $HOLDFAST_URL, or else a file in your state folder)`

const overview = `holdfast: make sure that only one process does a job at a time

  holdfast run NAME [options] -- COMMAND [ARGUMENT …]   run a command under a lock
  holdfast ls [PREFIX] [options]                        show holders and waiters
  holdfast migrate [options]                            create or upgrade the tables in PostgreSQL
  holdfast help COMMAND                                 show the help of a command
  holdfast --version                                    show the version

${STORE}
`

const texts: Record<string, string> = {
  run: `holdfast run NAME [options] -- COMMAND [ARGUMENT …]

Runs COMMAND while it holds the lock NAME, and renews the lease while COMMAND runs. If the lease cannot be renewed,
COMMAND and all its child processes are ended before the lease ends.

${STORE}
  --ttl SECONDS     time to live of the lease: how long other processes wait after a crash (default: 30)
  --wait SECONDS    how long to wait for the lock (default: no limit)
  --no-wait         do not wait
  --shared          share the lock with other --shared holders, but never with an exclusive one
  --min-hold SECONDS
                    keep the lock at least this long, so that a machine with a late clock does not repeat the job
  --max-hold SECONDS
                    stop renewing after this time: a command that hangs loses its lock and is ended
  --store-timeout SECONDS
                    how long to retry a store that does not answer, before COMMAND runs (default: 60)
  -E, --conflict-exit-code CODE
                    exit code if the lock was not acquired (default: ${exitCodes.notAcquired})

Exit codes
  COMMAND's own, or ${exitCodes.signal} + n if signal n ended it
  ${exitCodes.usage}  wrong usage
  ${exitCodes.unavailable}  the store is not available
  ${exitCodes.notAcquired}  the lock was not acquired
  ${exitCodes.lost}  the lease was lost, and COMMAND was ended

Environment of COMMAND
  HOLDFAST_LOCK_NAME, HOLDFAST_HOLDER_ID, HOLDFAST_FENCING_TOKEN

Examples
  holdfast run nightly-backup -- ./backup.sh
  holdfast run cron:cleanup --no-wait --min-hold 60 -- ./cleanup.sh      # in the crontab of every machine
  holdfast run deploy --wait 300 -E 0 -- make deploy                     # succeeds without the lock, too
`,
  ls: `holdfast ls [PREFIX] [options]

Shows the holders and waiters of all locks, or of those whose names begin with PREFIX.

${STORE}
  --json            print one JSON object per line, for each lease and each waiter

Examples
  holdfast ls
  holdfast ls cron: --json | jq -r .lockName
`,
  migrate: `holdfast migrate [options]

Creates or upgrades the tables and functions of the PostgreSQL driver. It is safe to run it again, and on several
machines at once.

  --url URL         the database: postgres://… (default: $HOLDFAST_URL)
  --schema NAME     the schema (default: public)
  --only fence      create only what postgresFence needs, in a database that keeps protected data but no locks
  --print           print the SQL instead, for your own migration tool

Examples
  holdfast migrate --url postgres://localhost/app
  holdfast migrate --print > migrations/0042-holdfast.sql
  holdfast migrate --url postgres://localhost/shop --only fence
`,
}
