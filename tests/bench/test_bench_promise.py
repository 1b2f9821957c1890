"""The benchmark of network programming latency under churn."""

from __future__ import annotations

import os

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.bench.programmed import packed_addresses, text_addresses
from kpctl.bench.promise import (
    MODES,
    PromiseEffort,
    check_promises,
    latencies,
    measure_name,
    measure_promise,
)
from kpctl.bench.records import OURS, UPSTREAM, Measurement, Size, percentile, summarise


def test_addresses_of_endpoints_are_found_where_they_are() -> None:
    """In bytes of any alignment and in rules, and no address of a Service."""
    message = b"\1\2\3" + bytes((10, 128, 0, 64)) + b"\x1f\x90" + bytes((10, 96, 1, 2))
    assert packed_addresses(message) == {"10.128.0.64"}
    rule = b"-A KUBE-SEP-X -d 10.96.0.1/32 -j DNAT --to-destination 10.130.2.3:8080\n"
    assert text_addresses(rule) == {"10.130.2.3"}


def test_a_change_that_never_arrives_counts_with_the_limit() -> None:
    sent = {"10.128.0.64": 1.0, "10.128.0.65": 2.0}
    assert latencies(sent, {"10.128.0.64": 1.5}, 60.0) == [0.5, 60.0]


def test_percentiles_are_of_all_values() -> None:
    values = [float(number) for number in range(101)]
    assert (percentile(values, 50), percentile(values, 99)) == (50.0, 99.0)
    assert percentile([7.0], 99) == 7.0


def test_what_was_promised_is_held_against_what_was_found() -> None:
    def found(pause: str, program: str, value: float) -> Measurement:
        name = f"{measure_name(1000, pause)}, p99"
        return Measurement("nftables", name, Size(10000), program, value, "ms")

    sentences = check_promises(
        summarise([found("default", OURS, 900), found("0", OURS, 51), found("0", UPSTREAM, 7000)])
    )
    assert [sentence.partition("ours ")[2] for sentence in sentences] == [
        "900 ms (within 1000 ms)",
        "51 ms (BEYOND 50 ms), upstream 7000 ms",
    ]


@pytest.mark.kernel
@pytest.mark.parametrize("mode", MODES)
def test_every_change_is_found_in_what_is_programmed(mode: str) -> None:
    """Ours, in a small cluster: no change is missed, whatever the pause between two syncs."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    found: list[Measurement] = []
    problems: list[str] = []
    effort = PromiseEffort(
        size=Size(40, 2), rate=20, seconds=1.0, modes=(mode,), programs=(OURS,),
        cutoff_seconds=LIMIT_SECONDS, start_seconds=LIMIT_SECONDS, idle_seconds=0,
    )  # fmt: skip
    measure_promise(
        effort, started=lambda _: None, found=found.extend, is_over=lambda _: False,
        failed=problems.append,
    )  # fmt: skip
    assert not problems
    lags = [each for each in found if each.name.endswith("p99")]
    assert len(lags) == 2
    assert not any(each.is_limit for each in found)
    assert all(each.value > 0 for each in lags)
