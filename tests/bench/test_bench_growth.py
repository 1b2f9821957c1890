"""The quick variant: one change takes the same work in any cluster."""

from collections.abc import Collection, Iterator, Sequence

import pytest
from click.testing import CliRunner

from kpctl.bench.growth import (
    LOST,
    DryBackend,
    DrySink,
    GrowthRow,
    default_backend,
    measure_costs,
    mode_growth,
)
from kpctl.bench.records import Size
from kpctl.cli import main
from kubeproxy.modes.base import AnyChange, AnyItem, AnySink, AnyValue, Batch
from kubeproxy.modes.registry import mode_names

SIZES = (Size(120), Size(600))
"""Both beyond a thousand endpoints, where rules get shorter and one change rewrites them all."""


@pytest.mark.parametrize("mode", mode_names())
def test_one_change_takes_the_same_work_at_any_size(mode: str) -> None:
    """Steps, kernel calls, bytes, items, plans and renders: none grows with the cluster."""
    rows = mode_growth(mode, SIZES)
    assert {row.change for row in rows} >= {"endpoint added", "Service added"}
    assert [sentence for row in rows for sentence in row.grown()] == []
    assert all(cost.items and not cost.full_reads for row in rows for _, cost in row.costs)
    planned = [row for row in rows if row.change != LOST]
    assert all(cost.plans == 1 for row in planned for _, cost in row.costs)


def test_a_lost_element_is_read_and_repaired_alone() -> None:
    """In the mode whose notifications name elements: nothing else is read, planned or written."""
    (row,) = (row for row in mode_growth("nftables", SIZES) if row.change == LOST)
    for _, cost in row.costs:
        assert (cost.full_reads, cost.items, cost.plans, cost.renders) == (0, 1, 0, 0)


class _Forgetful(DryBackend):
    """Has single items read by reading everything."""

    async def read_some(self, items: Collection[AnyItem]) -> None:
        return None


async def test_a_mode_that_reads_everything_for_a_lost_element_is_found_out() -> None:
    """By the full read itself, and by what it finds missing."""
    costs = (await measure_costs(_Forgetful(default_backend("nftables")), SIZES[0]))[LOST]
    assert costs.full_reads == 1
    assert costs.items > SIZES[0].services


class _RewritingSink(DrySink):
    """Sends everything it knows with every change, as some proxies do."""

    def __init__(self, sink: AnySink) -> None:
        super().__init__(sink)
        self._known: dict[AnyItem, AnyValue] = {}

    def compile(self, changes: Sequence[AnyChange]) -> Iterator[Batch[object]]:
        self._known |= {change.item: change.new for change in changes}
        yield Batch(tuple(changes), None, sum(len(str(item)) for item in self._known))


class _Rewriting(DryBackend):
    def __init__(self) -> None:
        super().__init__(default_backend("iptables"))
        self._rewriting = tuple(_RewritingSink(sink) for sink in super().sinks)

    @property
    def sinks(self) -> Sequence[AnySink]:
        return self._rewriting


async def test_a_mode_that_rewrites_everything_is_found_out() -> None:
    """Bytes and steps that grow with the cluster are reported."""
    found = [(size, await measure_costs(_Rewriting(), size)) for size in (SIZES[0], Size(240))]
    costs = tuple((size, at_size["endpoint added"]) for size, at_size in found)
    grown = GrowthRow("bad", "endpoint added", costs).grown()
    assert any("bytes sent grew" in sentence for sentence in grown)
    assert any("python steps grew" in sentence for sentence in grown)


def test_the_command_counts_and_succeeds() -> None:
    """`kpctl bench --quick` for one mode at small sizes."""
    arguments = ["bench", "--quick", "--mode", "ipvs", "--size", "120", "--size", "240"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "same work" in done.output


def test_the_command_explains_what_a_size_is() -> None:
    """A mistake is answered with an example."""
    done = CliRunner().invoke(main, ["bench", "--quick", "--size", "huge"])
    assert done.exit_code == 2
    assert "5kx50" in done.output
