import { exitCodes } from './exit-codes.ts'

/** The text for one command, or for all. */
export function helpFor(command: string | undefined): string {
  return (command !== undefined && Object.hasOwn(texts, command) ? texts[command] : undefined) ?? overview
}

const STORE = `  --url URL         which store: sqlite:PATH, postgres://…, redis://…, redlock://…
                    (HOLDFAST_URL; without either, a file in your state folder)`

const overview = `holdfast: run one thing at a time, over all the machines that share a store

  holdfast run NAME [options] -- COMMAND [ARGUMENT …]   run a command under a lock
  holdfast ls [PREFIX] [options]                        who holds what, and who waits
  holdfast migrate [options]                            create the tables in PostgreSQL, or bring them up to date
  holdfast help COMMAND                                 more on one of them
  holdfast --version

${STORE}
`

const texts: Record<string, string> = {
  run: `holdfast run NAME [options] -- COMMAND [ARGUMENT …]

Runs COMMAND while holding the lock NAME, and renews it as long as COMMAND runs. If the lease cannot be kept, COMMAND and all that
it has started are ended before the lease is.

${STORE}
  --ttl SECONDS     the lease's time to live: how long after a crash others have to wait (30)
  --wait SECONDS    how long to wait for the lock (as long as it takes)
  --no-wait         do not wait
  --shared          beside other --shared holders, but never beside an exclusive one
  --min-hold SECONDS  keep the lock at least so long, so that a machine with a late clock does not run the job again
  --max-hold SECONDS  stop renewing after this time: a command that hangs loses its lock and is ended
  --store-timeout SECONDS  how long to try a store that does not answer, before COMMAND runs (60)
  -E, --conflict-exit-code CODE  what to end with when the lock was not got (${exitCodes.notAcquired})

Ends with COMMAND's own code, or ${exitCodes.signal} + the number of the signal that ended it. Otherwise: ${exitCodes.notAcquired} the lock was not got,
${exitCodes.lost} the lease was lost and COMMAND was ended, ${exitCodes.unavailable} the store could not be asked, ${exitCodes.usage} wrong usage.
COMMAND finds HOLDFAST_LOCK_NAME, HOLDFAST_HOLDER_ID and HOLDFAST_FENCING_TOKEN in its environment.

Examples
  holdfast run nightly-backup -- ./backup.sh
  holdfast run cron:cleanup --no-wait --min-hold 60 -- ./cleanup.sh      # in the crontab of every machine
  holdfast run deploy --wait 300 -E 0 -- make deploy                     # not getting it is no failure
`,
  ls: `holdfast ls [PREFIX] [options]

Shows who holds and who waits, of all lock names or of those that begin with PREFIX.

${STORE}
  --json            one JSON object for each lease and waiter, a line each

Examples
  holdfast ls
  holdfast ls cron: --json | jq -r .lockName
`,
  migrate: `holdfast migrate [options]

Creates the tables and functions of the PostgreSQL driver, or brings them up to date. Safe to run again, and from many machines at once.

  --url URL         which database: postgres://… (HOLDFAST_URL)
  --schema NAME     which schema (public)
  --only fence      only what postgresFence needs, where the protected data is kept but no locks are
  --print           print the SQL instead, for a migration tool of your own

Examples
  holdfast migrate --url postgres://localhost/app
  holdfast migrate --print > migrations/0042-holdfast.sql
  holdfast migrate --url postgres://localhost/shop --only fence
`,
}
