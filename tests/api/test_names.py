"""Host names as backends: looked up again and again, and never at the cost of anything else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.manifest_kit import Received, settle
from tests.support.waiting import until

from kubeproxy.api import objects
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.names import MOST_ADDRESSES, Names, look_up
from kubeproxy.api.source import Kind, Synced, Upsert

WEB = "services: {web: {listen: 198.51.100.1:80, to: [servers.example:8080]}}\n"


class Answers:
    """A name server of one's own: addresses by name, or what is raised."""

    def __init__(self, **answers: tuple[str, ...] | Exception) -> None:
        self.answers: dict[str, tuple[str, ...] | Exception] = dict(answers)
        self.asked = 0

    def look_up(self, name: str) -> tuple[str, ...]:
        self.asked += 1
        answer = self.answers.get(name, OSError("no such name"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def until_asked_again(self) -> None:
        """Until a look-up that began after this call has ended."""
        before = self.asked
        await until(lambda: self.asked >= before + 2)


class Slices(Received):
    """Knows the addresses of slices as well."""

    @property
    def addresses(self) -> list[str]:
        found: dict[str, list[str]] = {}
        for event in self.events:
            if isinstance(event, Upsert) and isinstance(event.object, objects.EndpointSlice):
                endpoints = event.object.endpoints or []
                found[event.object.metadata.name] = [(e.addresses or [""])[0] for e in endpoints]
        return [address for addresses in found.values() for address in addresses]


@asynccontextmanager
async def following(path: Path, answers: Answers) -> AsyncIterator[Slices]:
    received = Slices()
    source = ManifestSource(path, names=Names(answers.look_up, interval_seconds=0.01))
    task = asyncio.create_task(source.run(received, "node"))
    try:
        await received.until(lambda: Synced(Kind.SERVICE_CIDR) in received.events or task.done())
        yield received
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_addresses_are_there_before_anything_is_synced(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WEB)
    answers = Answers(**{"servers.example": ("192.0.2.11", "192.0.2.12")})
    async with following(tmp_path, answers) as received:
        assert received.addresses == ["192.0.2.11", "192.0.2.12"]


async def test_another_answer_is_in_force_without_a_change_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WEB)
    answers = Answers(**{"servers.example": ("192.0.2.11",)})
    async with following(tmp_path, answers) as received:
        answers.answers["servers.example"] = ("192.0.2.12", "192.0.2.13")
        await received.until(lambda: received.addresses == ["192.0.2.12", "192.0.2.13"])
        received.events.clear()
        await answers.until_asked_again()
        await settle(tmp_path, received)
        slices = [e for e in received.events if isinstance(e, Upsert)]
        assert {e.kind for e in slices} <= {Kind.SERVICE}, "an equal answer changes nothing"


async def test_a_name_that_stops_resolving_keeps_its_addresses_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yaml").write_text(WEB)
    answers = Answers(**{"servers.example": ("192.0.2.11",)})
    async with following(tmp_path, answers) as received:
        for error in (OSError("temporary failure"), OSError("no such name"), ValueError("odd")):
            answers.answers["servers.example"] = error
            await answers.until_asked_again()
        await settle(tmp_path, received)
        assert received.addresses == ["192.0.2.11"]
        failures = [r for r in caplog.records if "does not resolve" in r.getMessage()]
        assert len(failures) == 1
        answers.answers["servers.example"] = ("192.0.2.12",)
        await received.until(lambda: received.addresses == ["192.0.2.12"])


async def test_a_name_without_an_answer_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look-up hangs: other files and other backends are served all the same."""
    monkeypatch.setattr("kubeproxy.api.manifests.NAMES_SECONDS", 0.05)
    release = threading.Event()

    class Hanging(Answers):
        def look_up(self, name: str) -> tuple[str, ...]:
            release.wait()
            return ("192.0.2.99",)

    text = WEB.replace("[servers.example:8080]", "[servers.example:8080, 192.0.2.1:8080]")
    (tmp_path / "a.yaml").write_text(text)
    try:
        async with following(tmp_path, Hanging()) as received:
            assert received.addresses == ["192.0.2.1"]
            await settle(tmp_path, received)
            release.set()
            await received.until(lambda: received.addresses == ["192.0.2.99", "192.0.2.1"])
    finally:
        release.set()


async def test_a_look_up_that_hangs_keeps_no_other_name_from_being_looked_up_again() -> None:
    """And there is no second thread for it."""
    release = threading.Event()
    asked: list[str] = []

    def hang(name: str) -> tuple[str, ...]:
        asked.append(name)
        if name.startswith("slow"):
            release.wait()
        return (f"192.0.2.{len(asked) % 2 + 1}",)

    names = Names(hang, interval_seconds=0.01, limit_seconds=0.5)
    slow = {f"slow{number}.example" for number in range(10)}
    names.want({*slow, "web.example"})
    task = asyncio.create_task(names.run())
    try:
        await until(lambda: asked.count("web.example") > 20)
        # On a busy machine that of the quick one may be late as well, until it is asked again.
        hanging = dict.fromkeys(slow, "no answer within 0.5 s")
        await until(lambda: names.failures == hanging, lambda: names.failures)
        assert all(asked.count(name) == 1 for name in slow)
        release.set()
        await until(lambda: not names.failures)
    finally:
        release.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_service_that_is_spoilt_keeps_all_its_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(WEB)
    answers = Answers(**{"servers.example": ("192.0.2.11",)})
    async with following(tmp_path, answers) as received:
        path.write_text(WEB.replace(":8080", ":eighty"))
        await received.until(lambda: received.problems)
        assert f"{path}:1: to[0]: port 'eighty'" in received.problems[0]
        await settle(tmp_path, received)
        assert "web" in received.services and received.addresses == ["192.0.2.11"]
        path.write_text("services: {}\n")
        await received.until_services()


async def test_one_check_for_all_is_for_the_short_form_too(tmp_path: Path) -> None:
    text = (
        "services: {a: {listen: 198.51.100.1:80, to: 192.0.2.1:80},"
        " b: {listen: 198.51.100.2:80, to: 192.0.2.1:80, check: none}}"
    )
    (tmp_path / "a.yaml").write_text(text)
    found = ManifestSource(tmp_path, "tcp interval=1s").load()
    services = [each for each in found.values() if isinstance(each, objects.Service)]
    checks = {each.metadata.name: each.metadata.annotations for each in services}
    assert checks["a"] == objects.ServiceAnnotations(health_check="tcp interval=1s")
    assert checks["b"] == objects.ServiceAnnotations(health_check="none")


# --- what an answer may hold ---


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: answer)


def test_addresses_are_sorted_and_each_is_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "192.0.2.12", "192.0.2.11", "192.0.2.12", "2001:DB8::1")
    assert look_up("x") == ("192.0.2.11", "192.0.2.12", "2001:db8::1")


def test_what_leads_into_this_host_or_nowhere_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server of other people must not open ports that listen on loopback."""
    bad = (
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
    )
    answering(monkeypatch, *bad, "fe80::1", "::ffff:127.0.0.1", "192.0.2.1")
    assert look_up("x") == ("192.0.2.1",)
    answering(monkeypatch, *bad)
    with pytest.raises(OSError, match="no address that can be used"):
        look_up("x")


def test_an_answer_may_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, *(f"10.0.{n // 256}.{n % 256}" for n in range(4000)))
    assert len(look_up("x")) == MOST_ADDRESSES


def test_a_name_that_cannot_be_asked_for_is_an_error() -> None:
    with pytest.raises(OSError, match="not a name that can be looked up"):
        look_up("a" * 64 + ".example")
