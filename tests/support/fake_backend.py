"""A mode made of dictionaries: shows what an engine does, without Linux.

The kernel is a dict that batches really change; it can refuse an item, be busy, or be changed
behind the engine's back, like the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kubeproxy.errors import KernelError, Rejected
from kubeproxy.facts.ids import Family
from kubeproxy.facts.node import NodeFacts, planning_facts
from kubeproxy.modes.base import Backend, Batch, Change, Owner
from kubeproxy.plan.types import ServicePlan


class Listed(NamedTuple):
    """An entry of the first sink: an address that is ours."""

    address: str


class Route(NamedTuple):
    """An entry of the last sink: a frontend and where it leads."""

    address: str
    port: int
    protocol: str


Item: TypeAlias = Listed | Route
Value: TypeAlias = str | tuple[str, ...]
Changes: TypeAlias = tuple[Change[Item, Value], ...]


class FakeKernel:
    """The state two sinks share, and what goes wrong with it."""

    def __init__(self) -> None:
        self.state: dict[Item, Value] = {}
        self.history: list[str] = []
        self.batches: list[Changes] = []
        self.reads = 0
        self.items_read = 0
        self.can_read_some = True
        self.refuse: Callable[[Change[Item, Value]], bool] = lambda change: False
        self.fail: BaseException | None = None
        self.cut_after: int | None = None

    def apply(self, changes: Changes) -> None:
        if self.cut_after is not None and len(self.batches) >= self.cut_after:
            raise KernelError("the process was cut off here")
        if self.fail is not None:
            raise self.fail
        if any(map(self.refuse, changes)):
            raise Rejected("the kernel does not like this")
        self.batches.append(changes)
        for change in changes:
            verb = "-" if change.new is None else "+"
            self.history.append(f"{verb}{type(change.item).__name__}")
            if change.new is None:
                self.state.pop(change.item, None)
            else:
                self.state[change.item] = change.new


class FakeSink:
    """One kind of item of the fake kernel."""

    def __init__(self, name: str, item_type: type, kernel: FakeKernel, batch_size: int) -> None:
        self.name = name
        self.item_types: tuple[type, ...] = (item_type,)
        self.is_transactional = True
        self._kernel = kernel
        self._batch_size = batch_size

    async def read(self) -> Mapping[Item, Value]:
        self._kernel.reads += 1
        return {k: v for k, v in self._kernel.state.items() if isinstance(k, self.item_types)}

    def compile(self, changes: Sequence[Change[Item, Value]]) -> Iterator[Batch[Changes]]:
        for start in range(0, len(changes), self._batch_size):
            chunk = tuple(changes[start : start + self._batch_size])
            yield Batch(chunk, chunk, size=10 * len(chunk))

    async def apply(self, batch: Batch[Changes]) -> None:
        self._kernel.apply(batch.payload)


class FakeBackend(Backend[Item, Value, None]):
    """Turns every frontend into a route and a listed address."""

    def __init__(
        self,
        family: Family = Family.IPV4,
        *,
        kernel: FakeKernel | None = None,
        batch_size: int = 100,
    ) -> None:
        super().__init__(family, None)
        self.kernel = kernel or FakeKernel()
        self._sinks = (
            FakeSink("addresses", Listed, self.kernel, batch_size),
            FakeSink("routes", Route, self.kernel, batch_size),
        )

    @property
    def sinks(self) -> Sequence[FakeSink]:
        return self._sinks

    async def read_some(self, items: Collection[Item]) -> Mapping[Item, Value | None] | None:
        if not self.kernel.can_read_some:
            return None
        self.kernel.items_read += len(items)
        return {item: self.kernel.state.get(item) for item in items}

    def scaffold(self, node: NodeFacts) -> Mapping[Item, Value]:
        return {Listed(address): "node" for address in node.node_port_addresses}

    def rendering_facts(self, node: NodeFacts) -> NodeFacts:
        return planning_facts(node)

    def render(self, plan: ServicePlan, node: NodeFacts) -> Mapping[Item, Value]:
        items: dict[Item, Value] = {}
        for frontend in plan.frontends:
            pool = plan.pool(frontend.pool).endpoints
            key = Route(frontend.address, frontend.port, plan.id.protocol.value)
            items[key] = (frontend.verdict.value, *(e.text for e in pool))
            if frontend.address:
                items[Listed(frontend.address)] = "service"
        return items

    def describe(self, fragments: Mapping[Owner, Mapping[Item, Value]]) -> str:
        lines = (f"{item} = {value}" for part in fragments.values() for item, value in part.items())
        return "\n".join(lines) + "\n"
