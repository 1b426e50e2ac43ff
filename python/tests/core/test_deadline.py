from __future__ import annotations

import math

from holdfast.core.clock import Instant
from holdfast.core.deadline import LeaseDeadline, trusted_until

SENT = Instant(1_000, 50_000)


def test_rule_2_a_lease_is_trusted_from_the_sending_of_its_request_less_the_margin() -> None:
    assert trusted_until(SENT, 1_000) == Instant(1_988, 50_988)


def test_either_clock_ends_a_deadline() -> None:
    deadline = Instant(2_000, 60_000)
    assert not deadline.is_past(Instant(1_999, 59_999))
    assert deadline.is_past(Instant(2_000, 0))
    assert deadline.is_past(Instant(0, 60_000))


def test_an_answer_proves_the_shortest_renewal_that_was_in_flight_with_it() -> None:
    deadline = LeaseDeadline(SENT, 1_000)
    long = deadline.sending(Instant(1_100, 50_100), 10_000)
    short = deadline.sending(Instant(1_200, 50_200), 500)
    assert deadline.at == trusted_until(Instant(1_200, 50_200), 500), "the short one may arrive at any time"
    deadline.confirmed(long)
    # The short one may have arrived after the long one.
    assert deadline.at == trusted_until(Instant(1_200, 50_200), 500)
    deadline.confirmed(short)
    assert deadline.at == trusted_until(Instant(1_200, 50_200), 500)


def test_a_renewal_without_an_answer_limits_all_later_ones() -> None:
    deadline = LeaseDeadline(SENT, 1_000)
    deadline.unanswered(deadline.sending(Instant(1_100, 50_100), 300))
    later = Instant(1_200, 50_200)
    deadline.confirmed(deadline.sending(later, 10_000))
    assert deadline.at == trusted_until(later, 300), "the unanswered one may still arrive"


def test_an_older_confirmation_proves_nothing_new() -> None:
    deadline = LeaseDeadline(SENT, 1_000)
    first = deadline.sending(Instant(1_100, 50_100), 1_000)
    second = deadline.sending(Instant(1_500, 50_500), 1_000)
    deadline.confirmed(second)
    at = deadline.at
    deadline.confirmed(first)
    assert deadline.at == at == trusted_until(Instant(1_500, 50_500), 1_000)
    assert deadline.unanswered_ms == math.inf


def test_an_answer_that_two_threads_get_at_once_does_not_undo_a_loss() -> None:
    deadline = LeaseDeadline(SENT, 1_000)
    renewal = deadline.sending(Instant(1_100, 50_100), 1_000)
    # One thread has just seen that the lease is held, and the other one learns that the store has lost it.
    deadline.end()
    deadline.confirmed(renewal)
    assert deadline.at.is_past(Instant(1_101, 50_101))
    deadline.confirmed(deadline.sending(Instant(1_200, 50_200), 1_000))
    assert deadline.at.is_past(Instant(1_201, 50_201))
