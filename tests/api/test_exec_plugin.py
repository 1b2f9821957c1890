"""Credential plugins, as real programs."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.recorded import RecordedRequests
from tests.support.waiting import LIMIT_SECONDS

from kubeproxy.api.auth.access import Access, ExecSpec, Tls
from kubeproxy.api.auth.exec_plugin import ExecPlugin, exec_info
from kubeproxy.errors import Unavailable

V1 = "client.authentication.k8s.io/v1"
ACCESS = Access(server="https://api:6443", tls=Tls(ca_data=b"CA"))


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def script(folder: Path, body: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def answer(status: object, *, version: str = V1, kind: str = "ExecCredential") -> str:
    text = json.dumps({"apiVersion": version, "kind": kind, "status": status})
    return f"echo '{text}'"


def plugin(
    command: str, observer: RecordedRequests | None = None, *, clock: Clock | None = None
) -> ExecPlugin:
    return ExecPlugin(
        ExecSpec(command=command, api_version=V1, environment=(("WHO", "me"),)),
        ACCESS,
        observer=observer or RecordedRequests(),
        now=clock or Clock(),
        timeout_seconds=LIMIT_SECONDS,
    )


async def test_a_credential_is_kept_until_it_expires(tmp_path: Path) -> None:
    clock = Clock()
    expires = (clock.now + timedelta(minutes=5)).isoformat().replace("+00:00", "Z")
    counter = tmp_path / "runs"
    body = f"echo x >>{counter}\n" + answer({"token": "t", "expirationTimestamp": expires})
    one = plugin(script(tmp_path, body), clock=clock)
    assert (await one.credential()).token == "t"
    await one.credential()
    assert counter.read_text() == "x\n"
    clock.now += timedelta(minutes=5)
    await one.credential()
    assert counter.read_text() == "x\nx\n"


async def test_a_refused_credential_is_asked_for_again(tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    one = plugin(script(tmp_path, f"echo x >>{counter}\n" + answer({"token": "t"})))
    used = await one.credential()
    one.discard(used)
    again = await one.credential()
    one.discard(used)
    assert await one.credential() is again
    assert counter.read_text() == "x\nx\n"


async def test_many_callers_run_the_plugin_once(tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    one = plugin(script(tmp_path, f"echo x >>{counter}\n" + answer({"token": "t"})))
    await asyncio.gather(*(one.credential() for _ in range(5)))
    assert counter.read_text() == "x\n"


async def test_it_gets_its_environment_and_no_terminal(tmp_path: Path) -> None:
    out = tmp_path / "out"
    body = f'printf "%s|%s|" "$WHO" "$KUBERNETES_EXEC_INFO" >{out}\ncat >>{out}\n'
    await plugin(script(tmp_path, body + answer({"token": "t"}))).credential()
    who, info, stdin = out.read_text().split("|")
    assert (who, stdin) == ("me", "")
    assert json.loads(info) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {"interactive": False},
    }


def test_cluster_information_is_given_where_asked_for() -> None:
    spec = ExecSpec("x", V1, provides_cluster_info=True, cluster_config=b'{"a":1}')
    assert json.loads(exec_info(spec, ACCESS))["spec"]["cluster"] == {
        "server": "https://api:6443",
        "certificate-authority-data": "Q0E=",
        "config": {"a": 1},
    }


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ("echo nonsense", "decoding stdout", "no_error"),
        (answer({"token": "t"}, version="v9"), "it printed v9 ExecCredential", "no_error"),
        (answer({"token": "t"}, kind="Pod"), "it printed", "no_error"),
        (answer(None), "didn't return a status field", "no_error"),
        (answer({}), "didn't return a token or cert/key pair", "no_error"),
        (answer({"clientKeyData": "k"}), "only certificate or key, not both", "no_error"),
        ("echo sorry >&2; exit 3", "failed with exit code 3: sorry", "plugin_execution_error"),
    ],
)
async def test_what_a_plugin_can_do_wrong(
    tmp_path: Path, body: str, message: str, status: str
) -> None:
    observer = RecordedRequests()
    with pytest.raises(Unavailable, match=message) as caught:
        await plugin(script(tmp_path, body), observer).credential()
    assert str(caught.value).startswith(f"getting credentials: exec: plugin {tmp_path}/plugin: ")
    assert [call["status"] for call in observer.of("plugin_called")] == [status]


async def test_a_missing_plugin_comes_with_its_hint(tmp_path: Path) -> None:
    observer = RecordedRequests()
    spec = ExecSpec(str(tmp_path / "no"), V1, install_hint="install it so")
    with pytest.raises(Unavailable, match=r"cannot be started: no such file.*; install it so"):
        await ExecPlugin(spec, ACCESS, observer=observer).credential()
    assert observer.of("plugin_called") == [{"code": 1, "status": "plugin_not_found_error"}]


async def test_a_hanging_plugin_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = script(tmp_path, f"echo $$ >{pid_file}; exec sleep 3600")
    for seconds in (0.5, 5, 60):  # a busy machine may not even have started it in the first
        one = ExecPlugin(
            ExecSpec(command, V1), ACCESS, observer=RecordedRequests(), timeout_seconds=seconds
        )
        with pytest.raises(Unavailable, match=f"no answer within {seconds:g} seconds"):
            await one.credential()
        if pid_file.exists() and pid_file.read_text().strip():
            break
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()
