"""When an endpoint counts as failing: after `fall` failures in a row, until `rise` successes. Pure.

An endpoint begins as passing, because nothing is known against it: a proxy that was restarted
throws no endpoint out before it has failed `fall` times again.
"""

from __future__ import annotations

from typing import NamedTuple

from kubeproxy.facts.policy import HealthCheck


class Failure(NamedTuple):
    """Why one check failed: a word of a small vocabulary for metrics, and a reason for people.

    A reason holds nothing that the endpoint may choose at will: it is kept, compared and shown.
    """

    kind: str
    reason: str


class Condition(NamedTuple):
    """What checks have found so far.

    `failure` is that which took the endpoint out, None while it passes. `streak` counts the results
    in a row that are against the present state.
    """

    failure: Failure | None = None
    streak: int = 0


PASSING = Condition()
"""There is one object for it, because nearly all endpoints are in this condition."""


def judge(before: Condition, failure: Failure | None, check: HealthCheck) -> Condition:
    """Return the condition after one more check, which failed or, with None, did not."""
    if (before.failure is None) == (failure is None):
        after = Condition(before.failure) if before.streak else before
    elif before.streak + 1 < (check.fall if failure else check.rise):
        after = Condition(before.failure, before.streak + 1)
    else:
        after = Condition(failure)
    return after if after != PASSING else PASSING
