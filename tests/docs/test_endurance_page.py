"""The page about endurance names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/endurance.md").read_text()


def test_every_test_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]+)::(test_\w+)`", PAGE))
    assert len(named) > 40
    assert [
        f"{place}::{name}"
        for place, name in sorted(named)
        if f"def {name}(" not in (ROOT / place).read_text()
    ] == []


def test_every_row_has_a_test() -> None:
    rows = [line for line in PAGE.partition("## A day")[0].splitlines() if line.startswith("| ")]
    heads = ("| what ",)
    assert [row for row in rows if not row.startswith(heads) and "`tests/" not in row] == []
