"""The page about security names tests and flows that exist, and flags that are flags."""

from __future__ import annotations

import re
from pathlib import Path

from kpctl.flows.library import load_corpus
from kubeproxy.config.flags import FLAGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()


def test_every_test_exists() -> None:
    named = set(re.findall(r"`(tests/[^`*]+)`", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_flow_exists() -> None:
    known = {flow.name for flow in load_corpus()}
    named = set(re.findall(r"`(\d\d-[a-z-]+)`", PAGE))
    assert named and named <= known


def test_every_flag_exists() -> None:
    named = set(re.findall(r"`--([a-z-]+)", PAGE))
    assert named <= FLAGS.keys()


def test_every_vulnerability_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| CVE-")]
    assert len(rows) >= 10
    assert all("`tests/" in row.rsplit("|", 2)[1] for row in rows)
