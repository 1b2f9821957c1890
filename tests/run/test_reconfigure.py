"""A changed configuration file: what restarts the proxy, and what it goes on in spite of."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.waiting import limit, until

from kubeproxy.config.command import Settings, parse_command_line
from kubeproxy.run.reconfigure import UPDATED, Reconfiguration
from kubeproxy.status.event_series import Reference
from kubeproxy.status.events import Recorder
from kubeproxy.status.metrics import Metrics

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
NFTABLES = f"{HEAD}mode: nftables\n"
OTHER = f"{NFTABLES}nftables: {{syncPeriod: 1m}}\n"
TYPO = f"{NFTABLES}nftables: {{syncPeriod: 1mm}}\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
AT_ONCE = "--config-restart-jitter=0"
VERY_LATE = "--config-restart-jitter=10h"


class Events(Recorder):
    """A recorder that keeps the events."""

    def __init__(self) -> None:
        super().__init__(None, hostname="h", now_ns=lambda: 0, random=lambda: 0.5)
        self.recorded: list[tuple[str, str, str, str]] = []

    def record(
        self, regarding: Reference, *, type: str, reason: str, action: str, note: str = ""
    ) -> None:
        self.recorded.append((regarding.name, type, reason, note))


class Scene:
    """A configuration file, the one that follows it, and what came of it."""

    def __init__(self, path: Path, *flags: str) -> None:
        self.path = path
        settings = parse_command_line([f"--config={path}", *flags])
        assert isinstance(settings, Settings), settings
        self.events = Events()
        self.metrics = Metrics("nftables")
        self.restarts: list[str] = []
        self.work = Reconfiguration(
            settings,
            node=Reference("Node", "worker"),
            recorder=self.events,
            metrics=self.metrics,
            restart=self.restarts.append,
            random=lambda: 0.5,
        )

    def is_reload_successful(self) -> bool:
        _, text = self.metrics.scrape()
        return "kubeproxy_config_last_reload_successful 1" in text.decode()

    async def until(self, condition: Callable[[], object]) -> None:
        await until(condition, lambda: self.events.recorded)


@asynccontextmanager
async def following(path: Path, *flags: str) -> AsyncIterator[Scene]:
    scene = Scene(path, *flags)
    task = asyncio.create_task(scene.work.run())
    try:
        await asyncio.sleep(0.05)
        yield scene
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(NFTABLES)
    return path


async def test_another_configuration_restarts_the_proxy(config: Path) -> None:
    async with following(config, AT_ONCE) as scene:
        config.write_text(OTHER)
        await scene.until(lambda: scene.restarts == [UPDATED])
        assert scene.is_reload_successful() and not scene.events.recorded


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (TYPO, 'time: unknown unit "mm" in duration "1mm"'),
        (f"{HEAD}mode: nftable\n", "KubeProxyConfiguration.Mode.ProxyMode"),
        (f"{NFTABLES}featureGates: {{Nonsense: true}}\n", "unrecognized feature gate: Nonsense"),
        (f"{NFTABLES}logging: {{format: xml}}\n", "initialize logging: logging.format"),
        (f"{NFTABLES}{BOMB}", "document contains excessive aliasing"),
        (f"{NFTABLES}- x\n", "failed to decode: yaml: line 3"),
        (f"{NFTABLES}nftables: {{minSyncPeriod: 2h, syncPeriod: 3h}}\n", "MinSyncPeriod"),
        ("", "Object 'Kind' is missing"),
        ("\0\xff", "failed to decode"),
        ("[" * 100_000, "failed to decode"),
        ("{" * 100_000, "failed to decode"),
        (f"{NFTABLES}clientConnection: {{burst: {'9' * 10_000}}}\n", "cannot unmarshal"),
    ],
)
async def test_what_does_not_validate_is_reported_and_the_proxy_goes_on(
    config: Path, content: str, problem: str
) -> None:
    async with following(config, AT_ONCE) as scene:
        config.write_bytes(content.encode("latin-1"))
        await scene.until(lambda: scene.events.recorded)
        ((node, kind, reason, note),) = scene.events.recorded
        assert (node, kind, reason) == ("worker", "Warning", "InvalidConfiguration")
        assert problem in note and "going on with the configuration from before" in note
        assert len(note) <= 1024
        assert not scene.is_reload_successful()
        config.write_text(OTHER)
        await scene.until(lambda: scene.restarts == [UPDATED])
        assert scene.is_reload_successful()


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("vanish", [Path.unlink, become_a_pipe])
async def test_a_file_that_is_gone_or_no_file_does_not_end_the_proxy(
    config: Path, vanish: Callable[[Path], object]
) -> None:
    async with following(config, AT_ONCE) as scene:
        vanish(config)
        await scene.until(lambda: scene.events.recorded)
        assert not scene.restarts and not scene.is_reload_successful()
        new = config.with_name("new")
        new.write_text(NFTABLES)
        new.rename(config)
        await scene.until(scene.is_reload_successful)
        assert not scene.restarts


@pytest.mark.parametrize(
    "content",
    [
        f"# another comment\n{NFTABLES}",
        f"{NFTABLES}nftables: {{syncPeriod: 30s}}\n",
        f"{NFTABLES}featureGates: {{LoggingBetaOptions: true}}\n",
        f"{NFTABLES}noSuchField: 1\n",
    ],
)
async def test_a_change_without_effect_does_not_restart(config: Path, content: str) -> None:
    async with following(config, AT_ONCE) as scene:
        config.unlink()
        await scene.until(lambda: not scene.is_reload_successful())
        config.write_text(content)
        await scene.until(scene.is_reload_successful)
        await asyncio.sleep(0.05)
        assert not scene.restarts


def let_the_delay_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop's clock jumps by half a day."""
    loop = asyncio.get_running_loop()
    before = loop.time
    monkeypatch.setattr(loop, "time", lambda: before() + 12 * 3600)


async def test_a_later_change_cancels_the_restart_that_was_coming(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is a mistake or takes the change back."""
    async with following(config, VERY_LATE) as scene:
        for second in (TYPO, NFTABLES):
            config.unlink()
            await scene.until(lambda: not scene.is_reload_successful())
            config.write_text(OTHER)
            await scene.until(scene.is_reload_successful)
            config.write_text(second)
            if second == TYPO:
                await scene.until(lambda: len(scene.events.recorded) == 2)
        let_the_delay_pass(monkeypatch)
        await asyncio.sleep(0.05)
        assert not scene.restarts


async def test_the_restart_waits_for_a_random_time(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(config, VERY_LATE) as scene:
        config.unlink()
        await scene.until(lambda: not scene.is_reload_successful())
        config.write_text(OTHER)
        await scene.until(scene.is_reload_successful)
        await asyncio.sleep(0.05)
        assert not scene.restarts
        let_the_delay_pass(monkeypatch)
        await scene.until(lambda: scene.restarts == [UPDATED])


async def test_a_pipe_is_read_once_and_not_followed() -> None:
    reading, writing = os.pipe()
    os.write(writing, NFTABLES.encode())
    os.close(writing)
    try:
        scene = Scene(Path(f"/dev/fd/{reading}"), AT_ONCE)
        async with limit():
            await scene.work.run()
        assert not scene.restarts and scene.is_reload_successful()
    finally:
        os.close(reading)


async def test_without_a_file_there_is_nothing_to_do() -> None:
    settings = parse_command_line([])
    assert isinstance(settings, Settings)
    metrics = Metrics("iptables")
    await Reconfiguration(
        settings,
        node=Reference("Node", "worker"),
        recorder=Events(),
        metrics=metrics,
        restart=pytest.fail,
        random=lambda: 0.0,
    ).run()
    assert b"kubeproxy_config_last_reload_successful 1" in metrics.scrape()[1]
