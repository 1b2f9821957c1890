"""Every captured case of upstream, as text: restore input byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.engine_kit import FakeClock
from tests.support.iptables_golden import GoldenCase, engines_of, load_cases

from kubeproxy.facts.ids import Family

GOLDEN = Path(__file__).parent.parent / "golden" / "iptables"
CASES = load_cases(GOLDEN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rendered_text_is_upstreams(case: GoldenCase, tmp_path: Path) -> None:
    """What `kpctl render` prints is what upstream's full sync feeds to iptables-restore."""
    engines = engines_of(case, tmp_path, FakeClock())
    for family in case.config.check:
        pipeline = engines[family].pipeline
        pipeline.recompute()
        text = engines[family].backend.describe(pipeline.fragments())
        assert text == case.text("restore", family)


@pytest.mark.parametrize(
    "case", [c for c in CASES if Family.IPV6 not in c.config.check], ids=lambda case: case.name
)
def test_the_other_family_is_empty(case: GoldenCase, tmp_path: Path) -> None:
    """Where a case is about IPv4 only, IPv6 has the skeleton of the empty case."""
    engine = engines_of(case, tmp_path, FakeClock())[Family.IPV6]
    engine.pipeline.recompute()
    text = engine.backend.describe(engine.pipeline.fragments())
    if case.config.host.nfacct and "tcp-be-liberal" not in case.name:
        assert text == (GOLDEN / "empty" / "restore6.txt").read_text()
    else:
        assert text.count("\n") < 25
