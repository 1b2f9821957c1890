"""One invocation: which stage answers, on which stream, with which exit code."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.config.command import Exit, Settings, parse_command_line, start_logging
from kubeproxy.config.usage import help_text, usage_text
from kubeproxy.logs import get_logger, stop_logging
from kubeproxy.version import PACKAGE_VERSION

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
HEADER = r"[IE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.py:\d+\] "


def leave(*argv: str) -> Exit:
    outcome = parse_command_line(argv)
    assert isinstance(outcome, Exit)
    return outcome


def run(*argv: str) -> Settings:
    outcome = parse_command_line(argv)
    assert isinstance(outcome, Settings), outcome
    return outcome


def body(line: str) -> str:
    """A log line without its header."""
    stripped = re.sub(f"^{HEADER}", "", line)
    assert stripped != line, line
    return stripped


def test_help_is_printed_on_stdout() -> None:
    assert leave("--help", "extra") == Exit(0, stdout=help_text())


def test_a_wrong_flag_prints_usage_and_error_on_stderr() -> None:
    assert leave("--help", "--bogus") == Exit(
        1, stderr=usage_text() + "\nError: unknown flag: --bogus\n"
    )


def test_arguments_are_refused_without_usage() -> None:
    assert leave("--version", "extra") == Exit(
        1, stderr='Error: "kube-proxy" does not take any arguments, got ["extra"]\n'
    )


def test_empty_arguments_are_tolerated() -> None:
    assert run("", "").config.mode == "iptables"


def test_the_version() -> None:
    assert leave("--version") == Exit(0, stdout="Kubernetes v1.36.4\n")


def test_the_raw_version_has_all_fields() -> None:
    fields = re.findall(r"(\w+):\"", leave("--version=raw").stdout)
    assert fields == [
        "Major", "Minor", "EmulationMajor", "EmulationMinor", "MinCompatibilityMajor",
        "MinCompatibilityMinor", "GitVersion", "GitCommit", "GitTreeState", "BuildDate",
        "GoVersion", "Compiler", "Platform", "Distribution",
    ]  # fmt: skip
    assert f'Distribution:"kubeproxy {PACKAGE_VERSION}"' in leave("--version=raw").stdout


def test_version_false_runs_on() -> None:
    assert run("--version=false").version == "v1.36.4"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--config=/nonexistent/x"], "open /nonexistent/x: no such file or directory"),
        (["--config=/"], "read /: is a directory"),
        (["--hostname-override=  "], "empty hostname-override is invalid"),
        (["--feature-gates=Foo=true"], "unrecognized feature gate: Foo"),
        (
            ["--feature-gates=NFTablesProxyMode=false,WinDSR=false"],
            "[cannot set feature gate NFTablesProxyMode to false, feature is locked to true, "
            "cannot set feature gate WinDSR to false, feature is locked to true]",
        ),
    ],
)
def test_completion_failures(argv: list[str], error: str) -> None:
    outcome = leave("--proxy-mode=iptables", *argv)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert body(outcome.stderr) == f'"command failed" err="failed complete: {error}"\n'


def test_a_file_that_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("kind: X")
    text = body(leave(f"--config={path}").stderr)
    assert text == (
        '"command failed" err="failed complete: failed to decode: '
        "Object 'apiVersion' is missing in 'kind: X'\"\n"
    )


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe")
    assert "failed to decode: yaml: invalid leading UTF-8 octet" in leave(f"--config={path}").stderr


def test_wrong_logging_options_fail_before_validation_as_text() -> None:
    first, last = leave("--logging-format=foo", "--oom-score-adj=5000").stderr.splitlines()
    assert body(first) == '"Using iptables proxy"'
    assert body(last) == (
        '"command failed" err="initialize logging: logging.format: '
        'Invalid value: \\"foo\\": Unsupported log format"'
    )


def test_validation_failures_come_in_the_chosen_format() -> None:
    outcome = leave("--logging-format=json", "--oom-score-adj=5000", "--conntrack-min=-1")
    first, last = outcome.stderr.splitlines()
    assert body(first) == '"Using iptables proxy"'
    line = json.loads(last)
    assert line["msg"] == "command failed"
    assert line["err"].startswith("failed validate: [KubeProxyConfiguration.")
    assert "v" not in line


def test_flags_are_logged_before_validation_fails() -> None:
    lines = leave("-v1", "--proxy-mode=foo").stderr.splitlines()
    assert body(lines[0]) == 'FLAG: --bind-address="0.0.0.0"'
    assert 'FLAG: --proxy-mode="foo"' in [body(line) for line in lines]
    assert "failed validate: " in lines[-1]


def test_split_streams_also_hold_for_failures() -> None:
    outcome = leave(
        "-v1", "--proxy-mode=foo", "--log-text-split-stream",
        "--feature-gates=LoggingAlphaOptions=true",
    )  # fmt: skip
    assert "FLAG: " in outcome.stdout and "FLAG: " not in outcome.stderr
    assert "command failed" in outcome.stderr


def test_metrics_cannot_be_disabled() -> None:
    outcome = leave("--metrics-port=0", "--proxy-mode=ipvs")
    notice, failure = outcome.stderr.splitlines()
    assert notice.startswith("Flag --metrics-port has been deprecated, ")
    assert body(failure) == (
        '"command failed" err="failed validate: KubeProxyConfiguration.MetricsBindAddress: '
        'Invalid value: \\"\\": must be IP:port"'
    )


def test_healthz_can_be_disabled() -> None:
    settings = run("--healthz-port=0")
    assert settings.config.healthz_bind_address == ""
    assert len(settings.notices) == 1


def test_an_unrunnable_period_stops_the_daemon_but_not_other_actions() -> None:
    argv = ("--iptables-min-sync-period=2h", "--iptables-sync-period=3h")
    assert "must not be greater than 1h0m0s in iptables mode" in leave(*argv).stderr
    assert run(*argv, "--cleanup").cleanup
    assert run(*argv, "--write-config-to=x").write_config_to == "x"


def test_settings_carry_everything(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(HEAD + "bogus: 1\nfeatureGates: {AllowServiceExternalIPs: false}\n")
    settings = run(f"--config={path}", "--hostname-override=Node", "--manifests=/m", "--v=2")
    assert settings.hostname_override == "node"
    assert settings.config_file == str(path)
    assert settings.config_content == path.read_bytes()
    assert settings.extensions.text("manifests") == "/m"
    assert not settings.gates.enabled("AllowServiceExternalIPs")
    assert settings.flag_values["v"] == "2" and settings.flag_values["proxy-mode"] == ""
    assert [entry.message for entry in settings.early] == [
        "Using lenient decoding as strict decoding failed",
        "Using iptables proxy",
        "Warning: setting GA feature gate. It will be removed in a future release.",
    ]
    assert settings.early[0].values == {"err": 'strict decoding error: unknown field "bogus"'}


def test_a_host_name_from_the_file_is_trimmed_when_used(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(HEAD + "hostnameOverride: ' Node '\n")
    assert run(f"--config={path}").hostname_override == "node"


def test_logging_starts_with_the_messages_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    start_logging(run("-v1", "--healthz-port=1", "--logging-format=json"))
    try:
        log = get_logger("kubeproxy.some_module")
        enabled = [level for level in range(4) if log.v(level).enabled]
    finally:
        stop_logging()
    notice, early, *flags = stderr.getvalue().splitlines()
    assert notice.startswith("Flag --healthz-port has been deprecated")
    assert body(early) == '"Using iptables proxy"'
    assert json.loads(flags[0])["msg"] == 'FLAG: --bind-address="0.0.0.0"'
    assert enabled == [0, 1]


def test_answering_the_version_loads_nothing_heavy() -> None:
    """Start-up stays quick: no YAML, no HTTP library, no terminal library."""
    code = (
        "import sys\n"
        "from kubeproxy.config.command import parse_command_line\n"
        "parse_command_line(['--version'])\n"
        "print([m for m in ('yaml', 'aiohttp', 'rich', 'click', 'asyncio') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
