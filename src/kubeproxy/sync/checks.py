"""Which endpoints are checked for which Service; what is found comes back in as facts.

    round ──replanned──▶ targets ──▶ Checker ──changed──▶ store (Rotation.failing) ──▶ next round

An address and port is checked once per distinct check, however many Services and ports share it.
One change costs the size of its Service. While no Service asks for checks there is no checker, and
a Service that is planned again costs a look at one attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from kubeproxy.checks.checker import Checker
from kubeproxy.checks.schedule import Target
from kubeproxy.facts.ids import Family, ServiceName
from kubeproxy.facts.policy import HealthCheck
from kubeproxy.logs import get_logger
from kubeproxy.logs.limit import LogLimit
from kubeproxy.plan.health import checked_endpoints
from kubeproxy.plan.types import ServicePlan
from kubeproxy.sync.engine import Engine
from kubeproxy.sync.pipeline import Pipeline

logger = get_logger(__name__)

MOST_LOGGED = 30
"""Changes that are logged per minute. All are counted, and shown by kpctl."""

User: TypeAlias = tuple[Family, ServiceName]
_Key: TypeAlias = tuple[HealthCheck, str, int]


class CheckListener(Protocol):
    """Receives what checks have found, to be shown to people; implemented by the journal."""

    def endpoint_checked(
        self, family: Family, name: ServiceName, endpoint: str, reason: str
    ) -> None:
        """An endpoint fails for this reason from now on; with an empty one it passes again."""


class HealthChecks:
    """The targets of all Services, and who uses them. A `PlanListener` of every engine."""

    def __init__(
        self,
        listener: CheckListener | None = None,
        make_checker: Callable[[Callable[[Sequence[Target]], None]], Checker] = Checker,
    ) -> None:
        self._listener = listener
        self._make_checker = make_checker
        self._engines: Mapping[Family, Engine] = {}
        self._services: dict[User, dict[str, Target]] = {}
        """The target of each endpoint, by its text."""
        self._targets: dict[_Key, Target] = {}
        self._users: dict[Target, set[User]] = {}
        self._log_limit = LogLimit(burst=MOST_LOGGED)
        self.checker: Checker | None = None
        """None until a Service asks for checks."""

    def report_to(self, engines: Mapping[Family, Engine]) -> None:
        """Pass what is found to these engines."""
        self._engines = engines

    def close(self) -> None:
        if self.checker is not None:
            self.checker.close()

    # --- rounds: see sync.pipeline.PlanListener ---

    def replanned(
        self, pipeline: Pipeline, replaced: Mapping[ServiceName, tuple[ServicePlan, ...]]
    ) -> None:
        """Check what these Services ask for now."""
        family = pipeline.node.family
        for name in replaced:
            facts = pipeline.store.service(name)
            policy = facts.policy if facts else None
            if facts is not None and policy is not None and policy.health_check is not None:
                places = checked_endpoints(facts, pipeline.targets(name), pipeline.node)
                self._update((family, name), policy.health_check, places)
            elif (family, name) in self._services:
                self._replace((family, name), {})

    def _update(
        self, user: User, check: HealthCheck, places: Mapping[str, tuple[str, int]]
    ) -> None:
        wanted: dict[str, _Key] = {text: (check, *place) for text, place in places.items()}
        held = {text: _key(target) for text, target in self._services.get(user, {}).items()}
        if wanted != held:
            self._replace(user, wanted)

    def _replace(self, user: User, wanted: Mapping[str, _Key]) -> None:
        before = self._services.pop(user, {})
        # First what is new: a target that another port of the Service takes over is kept.
        after = {text: self._use(user, key) for text, key in wanted.items()}
        kept = set(after.values())
        for target in set(before.values()) - kept:
            self._drop(user, target)
        if after:
            self._services[user] = after
        self._pass_on(user)

    def _use(self, user: User, key: _Key) -> Target:
        target = self._targets.get(key)
        if target is None:
            self.checker = self.checker or self._make_checker(self._changed)
            target = self._targets[key] = self.checker.add(*key)
            self._users[target] = set()
        self._users[target].add(user)
        return target

    def _drop(self, user: User, target: Target) -> None:
        users = self._users[target]
        users.discard(user)
        if not users and self.checker is not None:
            del self._users[target], self._targets[_key(target)]
            self.checker.remove(target)

    def _pass_on(self, user: User) -> None:
        family, name = user
        failing = {
            text: target.condition.failure.reason
            for text, target in self._services.get(user, {}).items()
            if target.condition.failure is not None
        }
        self._engines[family].set_failing(name, failing)

    # --- what is found ---

    def _changed(self, targets: Sequence[Target]) -> None:
        """These begin or cease to fail."""
        changed = set(targets)
        for user in {user for target in changed for user in self._users.get(target, ())}:
            self._pass_on(user)
            for text, target in self._services[user].items():
                if target in changed:
                    self._report(user, text, target)

    def _report(self, user: User, endpoint: str, target: Target) -> None:
        family, name = user
        failure = target.condition.failure
        if self._listener is not None:
            reason = failure.reason if failure else ""
            self._listener.endpoint_checked(family, name, endpoint, reason)
        if not self._log_limit.is_due():
            return
        values = {"service": str(name), "endpoint": endpoint}
        if failure:
            logger.info("Endpoint fails its health check", **values, reason=failure.reason)
        else:
            logger.info("Endpoint passes its health check again", **values)


def _key(target: Target) -> _Key:
    return target.check, target.address, target.port
