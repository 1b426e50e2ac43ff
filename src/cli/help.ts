import { exitCodes } from './exit-codes.ts'

/** The help of one command, or the overview. */
export function helpFor(command: string | undefined): string {
  return (command !== undefined && Object.hasOwn(helpTexts, command) ? helpTexts[command] : undefined) ?? overview
}

const STORE = `  --url URL         the store: sqlite:PATH, postgres://…, redis://…, redlock://…
                    (default: $HOLDFAST_URL, else a file in your state folder)`

const overview = `holdfast: make sure that only one process does a job at a time

  holdfast run NAME [options] -- COMMAND …   run a command under a lock
  holdfast ls [PREFIX] [options]             list the locks that are held
  holdfast top [PREFIX] [options]            watch locks and waiters live
  holdfast show NAME [options]               show one lock and its queue
  holdfast wait NAME [options]               wait until a lock is free
  holdfast force-release NAME --reason TEXT  end the leases on a lock by force
  holdfast elect NAME -- COMMAND …           run a command on the leader only
  holdfast limit KEY --rate N/s -- COMMAND … run a command as often as allowed
  holdfast dashboard [options]               show all locks live in a browser
  holdfast doctor [options]                  examine a store
  holdfast migrate [options]                 create or upgrade the tables in
                                             PostgreSQL
  holdfast completion bash|zsh|fish          print a script for your shell
  holdfast help COMMAND                      show the help of a command
  holdfast --version                         show the version

${STORE}

Exit codes
  0    done. Where a command ran: its own code, or ${exitCodes.signal} + n if signal n ended it
  ${exitCodes.usage}   wrong usage
  ${exitCodes.unavailable}   the store is not available
  ${exitCodes.internal}   an internal error
  ${exitCodes.notAcquired}   not acquired: the lock is held, or the rate limit is reached
  ${exitCodes.lost}   the lease was lost, and the command was ended
  ${exitCodes.notExecutable}  the command cannot be executed
  ${exitCodes.notFound}  the command does not exist
  ${exitCodes.doubtful}, ${exitCodes.broken} holdfast doctor: warnings, errors
`

/** By command. The options that are listed here are what a shell completes. */
export const helpTexts: Readonly<Record<string, string>> = {
  run: `holdfast run NAME [options] -- COMMAND [ARGUMENT …]

Runs COMMAND while it holds the lock NAME, and renews the lease while COMMAND
runs. If the lease cannot be renewed, COMMAND and all its child processes are
ended before the lease ends.

${STORE}
  --ttl SECONDS     time to live of the lease: how long other processes wait
                    after a crash (default: 30)
  --wait SECONDS    how long to wait for the lock (default: no limit)
  --no-wait         do not wait
  --shared          share the lock with other --shared holders, but never with
                    an exclusive one
  --min-hold SECONDS
                    keep the lock at least this long, so that a machine with a
                    late clock does not repeat the job
  --max-hold SECONDS
                    stop renewing after this time: a command that hangs loses
                    its lock and is ended
  --store-timeout SECONDS
                    how long to retry a store that does not answer, before
                    COMMAND runs (default: 60)
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
  # in the crontab of every machine
  holdfast run cron:cleanup --no-wait --min-hold 60 -- ./cleanup.sh
  # succeeds without the lock, too
  holdfast run deploy --wait 300 -E 0 -- make deploy
`,
  ls: `holdfast ls [PREFIX] [options]

Lists the locks that are held, or those whose names begin with PREFIX: the mode,
the holder, for how long it has held the lock, the time that is left unless the
lease is renewed, and how many wait. Names are cut to fit the terminal, or 80
columns.

${STORE}
  --wide            cut nothing; a line for each waiter; times and tokens
  --json            print one JSON object per line, for each lease and waiter
  --sort ORDER      name, age (the oldest first) or waiters (the most first)
  --held-longer-than TIME
                    only leases that are older: 90s, 5m, 2h, 1d
  --watch           show it again every second
  --all             show bookkeeping, too: results of once-only jobs, records
                    of forced releases, and marks of who waits for what

Examples
  holdfast ls
  holdfast ls cron: --json | jq -r .lockName
  holdfast ls --held-longer-than 1h --sort age
`,
  top: `holdfast top [PREFIX] [options]

Shows the locks that are held, or those whose names begin with PREFIX, until you
quit: the holder, for how long it has held the lock, the time that is left
unless the lease is renewed, how many wait, the longest wait, and hand-offs per
second. Press ? for its keys: they sort, filter and inspect.

It reads at most 20,000 leases and waiters at once, and says so if there are
more. If the store does not answer, it says since when, and goes on.

${STORE}
  --sort ORDER      waiters (the most first, the default), longest (wait), age,
                    handoffs or name
  --every TIME      the time between two looks at the store (default: 1s)
  --all             show bookkeeping, too, as holdfast ls does

Exit codes
  0   you quit
  ${exitCodes.usage}  wrong usage, or no terminal
  ${exitCodes.unavailable}  the store cannot be used, and trying again would not help

Examples
  holdfast top
  holdfast top cron: --sort age
`,
  show: `holdfast show NAME [options]

Shows one lock: its holders with their metadata and tokens, the queue in its
order, what a holder itself waits for, a deadlock if there is one, and who ended
its leases by force in the last 30 days.

${STORE}
  --json            print one JSON object

Examples
  holdfast show order:123
  holdfast show order:123 --json | jq .waiters
`,
  wait: `holdfast wait NAME [options]

Waits until the lock is free. It takes no place in the queue, and the lock
may be held again when it returns. To do something alone, use holdfast run.

${STORE}
  --timeout TIME    give up after this time: 90s, 5m, 2h (default: no limit)

Exit codes
  0   the lock was free
  ${exitCodes.unavailable}  the store is not available
  ${exitCodes.notAcquired}  the lock was still held at the end of --timeout

Examples
  holdfast wait deploy --timeout 10m && ./next-step.sh
`,
  'force-release': `holdfast force-release NAME --reason TEXT [options]

Ends the leases on a lock by force, and gives it to the next waiter. It shows
who is affected and asks first. If the lock has another holder by then, nothing
is ended. A holder that is alive loses the lock in the middle of its work: its
signal aborts, but only a fencing token stops a write that is on its way.

Who did it, when and why is kept for 30 days: see holdfast show. (redlock: for
its longest time to live. postgres+advisory: only in the log of the server.)

${STORE}
  --reason TEXT     why. It is recorded
  --by WHO          who. It is recorded (default: USER@HOST)
  -y, --yes         do not ask
  --end-session     postgres+advisory: if the holder does not let go, end its
                    connection, and all other locks of that connection

Exit codes
  0   the leases were ended, or the lock was free
  ${exitCodes.unavailable}  the store is not available, or cannot do it
  ${exitCodes.notAcquired}  nothing was ended: you said no, or the lock has another holder

Examples
  holdfast force-release report --reason "host web-3 is gone"
`,
  elect: `holdfast elect NAME [options] -- COMMAND [ARGUMENT …]

Runs COMMAND on one machine at a time: on the leader. If the leader loses its
term, COMMAND is ended there and started on the next leader; this process then
campaigns again. If COMMAND ends by itself, so does this process, with its exit
code.

${STORE}
  --ttl SECONDS     time to live of a term: how long the others wait after a
                    crash (default: 15)
  --store-timeout SECONDS
                    how long to retry a store that does not answer, before
                    COMMAND runs (default: 60)

Exit codes and the environment of COMMAND are those of holdfast run.

Examples
  holdfast elect scheduler -- node scheduler.js
`,
  limit: `holdfast limit KEY --rate RATE [options] -- COMMAND [ARGUMENT …]

Runs COMMAND as often as the limit allows, over all processes and machines that
use the same store, key and rate. It waits until it may.

${STORE}
  --rate RATE       10/s, 100/m, 1000/h, 5/d or 10/30s
  --burst N         how many may run at once after a pause (default: as many as
                    in one period)
  --wait TIME       give up after this time: 90s, 5m (default: no limit)
  --no-wait         do not wait

Exit codes
  COMMAND's own
  ${exitCodes.unavailable}  the store is not available
  ${exitCodes.notAcquired}  COMMAND did not run, because of the limit

Examples
  holdfast limit mail:newsletter --rate 10/s -- ./send-one.sh
`,
  dashboard: `holdfast dashboard [options]

Serves a page that shows the locks, queues, elections, semaphores and rate
limits of one or more stores, live. It prints the URL of the page. The URL
contains an access token, which is new each time. The stores are read only while
a browser shows the page.

  --url URL         a store: sqlite:PATH, postgres://…, redis://…, redlock://…
                    Repeat it for several stores
                    (default: $HOLDFAST_URL, else a file in your state folder)
  --port PORT       the port. 0 takes any that is free (default: 7411)
  --host ADDRESS    the address to listen on (default: 127.0.0.1)
  --allow-host NAME accept requests for this host name, too, as from a proxy
  --allow-actions   let viewers end leases by force
  --by WHO          who. It is recorded with each forced release
                    (default: USER@HOST)
  --elections PREFIX
                    show locks whose names begin with PREFIX as elections, even
                    if their leaders publish no value. May be repeated

Examples
  holdfast dashboard --url redis://localhost:6379
  holdfast dashboard --url redis://cache --url postgres://db/app --port 0
`,
  doctor: `holdfast doctor [options]

Examines a store: settings of its servers that endanger locks, missing rights,
round trips that are slow or too slow for the leases in the store, and whether
waiters are woken. It says what is wrong, why that matters and what to change.
It prints nothing if all is well. It acquires and releases locks whose names
begin with doctor: and ping:.

${STORE}
  --json            print one JSON object per line, for each finding

Exit codes
  0   nothing was found
  ${exitCodes.doubtful}   warnings
  ${exitCodes.broken}   errors: locks do not work, or exclude too little

Examples
  holdfast doctor --url redis://localhost:6379
`,
  migrate: `holdfast migrate [options]

Creates or upgrades the tables and functions of the PostgreSQL driver. It is
safe to run it again, and on several machines at once.

  --url URL         the database: postgres://… (default: $HOLDFAST_URL)
  --schema NAME     the schema (default: public)
  --only fence      create only what postgresFence needs, in a database that
                    keeps protected data but no locks
  --print           print the SQL instead, for your own migration tool

Examples
  holdfast migrate --url postgres://localhost/app
  holdfast migrate --print > migrations/0042-holdfast.sql
  holdfast migrate --url postgres://localhost/shop --only fence
`,
  completion: `holdfast completion bash|zsh|fish

Prints a script that completes commands, options and names of held locks.

Examples
  holdfast completion bash > /etc/bash_completion.d/holdfast
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
`,
}
