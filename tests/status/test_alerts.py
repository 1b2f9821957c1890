"""The Prometheus alert rules: on metrics that exist, and each fires when it should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.status.test_dashboard import NAME, published
from tests.support.waiting import LIMIT_SECONDS

RULES = Path(__file__).parents[2] / "deploy/chart/files/alerts.yaml"
CASES = Path(__file__).parent / "alerts/alerts.test.yaml"


def alerts() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def test_every_alert_names_metrics_that_exist() -> None:
    series = published()
    for alert in alerts():
        names = NAME.findall(alert["expr"])
        assert names or "node_nf_conntrack" in alert["expr"], alert["alert"]
        assert set(names) <= series.keys(), alert["alert"]


def test_every_alert_says_what_to_do_and_has_a_case() -> None:
    cases = CASES.read_text()
    for alert in alerts():
        assert set(alert["annotations"]) == {"summary", "description"}
        assert re.search(rf'alertname="{alert["alert"]}"', cases), alert["alert"]


@pytest.mark.parametrize("arguments", [("check", "rules", RULES), ("test", "rules", CASES)])
def test_promtool_agrees(arguments: tuple[str | Path, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    command = [promtool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert not done.returncode, done.stdout + done.stderr
