import { useEffect, useRef, useState } from 'preact/hooks'
import type { LockDetail } from '../wire.ts'
import { sendForceRelease } from './api.ts'
import { counted, seconds } from './format.ts'
import { type LiveStore, live, storeNow } from './live.ts'
import { StoreText } from './parts.tsx'

interface ForceReleaseProps {
  readonly store: LiveStore
  readonly detail: LockDetail
  close(): void
}

/** Shows who is affected, asks why, and ends exactly the leases that were shown. */
export function ForceRelease({ store, detail, close }: ForceReleaseProps) {
  const dialog = useRef<HTMLDialogElement>(null)
  // What was shown when the dialog was opened is what is confirmed, whatever happens meanwhile.
  const [{ leases, waiters, waiterCount, name }] = useState(detail)
  const [reason, setReason] = useState('')
  const [error, setError] = useState('')
  const [isSending, setSending] = useState(false)
  useEffect(() => dialog.current?.showModal(), [])
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault()
    setSending(true)
    const tokens = leases.map(({ token }) => token)
    const marks = leases.flatMap(({ mark }) => mark ?? [])
    const answer = await sendForceRelease({ store: store.index, name, tokens, marks, reason })
    setSending(false)
    if ('error' in answer) setError(answer.error)
    else dialog.current?.close()
  }
  const next = waiters[0]
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="force-title">
      <form onSubmit={submit}>
        <h2 id="force-title">
          Force release <StoreText text={name} />
        </h2>
        <p>
          {leases.length === 1 ? 'This holder loses' : `These ${leases.length} holders lose`} the lock in the middle of
          the work. Only a fencing token stops a write that is on its way.
        </p>
        <ul>
          {leases.map(({ holder, since }) => (
            <li>
              <StoreText text={holder} />
              {since !== undefined && <span class="muted"> for {seconds(storeNow(store) - since)}</span>}
            </li>
          ))}
        </ul>
        <p>
          {next === undefined ? (
            'No claim waits for it.'
          ) : (
            <>
              {counted(waiterCount, 'claim waits', 'claims wait')}. Next: <StoreText text={next.holder} />
            </>
          )}
        </p>
        <label>
          Why
          <textarea
            required
            rows={2}
            maxLength={500}
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </label>
        <p class="muted">Recorded with your name, {live.welcome.user ?? 'dashboard'}, for 30 days.</p>
        {error !== '' && (
          <p class="notice bad" role="alert">
            {error}
          </p>
        )}
        <div class="buttons">
          <button type="button" class="quiet" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="submit" class="danger" disabled={isSending || reason.trim() === ''}>
            Force release
          </button>
        </div>
      </form>
    </dialog>
  )
}
