"""Manifests are watched: every way a file changes, and every way it must not."""

from __future__ import annotations

import asyncio
import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.manifest_kit import Received, manifest, settle, watching

from kubeproxy.api import objects
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.api.source import Kind, Synced, Upsert
from kubeproxy.errors import ConfigError
from kubeproxy.logs import LogOptions, setup_logging, stop_logging


async def test_everything_is_delivered_before_synced(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web"))
    async with watching(tmp_path) as received:
        assert [type(event) for event in received.events] == [Upsert, *[Synced] * len(Kind)]
        assert {event.kind for event in received.events[1:]} == set(Kind)


async def test_files_come_change_and_go(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    async with watching(tmp_path) as received:
        path.write_text(manifest("web"))
        await received.until_services(web="10.96.0.1")
        path.write_text(manifest("web", "10.96.0.2") + manifest("api"))
        await received.until_services(web="10.96.0.2", api="10.96.0.1")
        path.rename(tmp_path / "b.yml")
        await settle(tmp_path, received)
        assert received.services == {"web": "10.96.0.2", "api": "10.96.0.1"}
        (tmp_path / "b.yml").unlink()
        await received.until_services()


async def test_a_file_that_moves_away_takes_its_objects_with_it(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "a.yaml").write_text(manifest("web"))
    async with watching(inside) as received:
        (inside / "a.yaml").rename(outside / "a.yaml")
        await received.until_services()
        (outside / "a.yaml").rename(inside / "b.yaml")
        await received.until_services(web="10.96.0.1")


async def test_only_objects_that_changed_are_delivered(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web") + manifest("api"))
    async with watching(tmp_path) as received:
        received.events.clear()
        (tmp_path / "a.yaml").write_text(manifest("web") + manifest("api", "10.96.0.9"))
        await received.until_services(web="10.96.0.1", api="10.96.0.9")
        assert len(received.events) == 1


@pytest.mark.parametrize(
    "content", ["", "# nothing yet", "{", "a: [", "words", "\x00", manifest("other")[:30]]
)
async def test_a_file_that_is_empty_or_broken_keeps_its_objects(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(manifest("web"))
    async with watching(tmp_path) as received:
        path.write_text(content)
        await settle(tmp_path, received)
        assert received.services == {"web": "10.96.0.1"}
        path.write_text(manifest("other"))
        await received.until_services(other="10.96.0.1")


async def test_a_file_still_being_written_is_left_alone_while_others_change(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(manifest("web") + manifest("api"))
    async with watching(tmp_path) as received:
        with path.open("w") as file:
            file.write(manifest("web"))
            file.flush()
            await settle(tmp_path, received)
            assert received.services == {"web": "10.96.0.1", "api": "10.96.0.1"}
        await received.until_services(web="10.96.0.1")


async def test_a_file_replaced_by_rename_is_read_once_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(manifest("web"))
    async with watching(tmp_path) as received:
        draft = tmp_path / ".a.yaml.draft"
        draft.write_text(manifest("web", "10.96.0.2"))
        draft.rename(path)
        await received.until_services(web="10.96.0.2")
        assert not received.problems


def make_config_map(directory: Path, version: str, content: str) -> None:
    """What the kubelet does: a directory per version, one link that is switched by rename."""
    (directory / version).mkdir()
    (directory / version / "a.yaml").write_text(content)
    (directory / "..data_tmp").symlink_to(version)
    (directory / "..data_tmp").rename(directory / "..data")
    if not (directory / "a.yaml").is_symlink():
        (directory / "a.yaml").symlink_to("..data/a.yaml")


@pytest.mark.parametrize("watched", ["", "a.yaml"])
async def test_a_config_map_switch_is_noticed(tmp_path: Path, watched: str) -> None:
    make_config_map(tmp_path, "..v1", manifest("web"))
    async with watching(tmp_path / watched) as received:
        assert received.services == {"web": "10.96.0.1"}
        make_config_map(tmp_path, "..v2", manifest("web", "10.96.0.2"))
        await received.until_services(web="10.96.0.2")


async def test_a_directory_replaced_by_another_is_read_and_watched(tmp_path: Path) -> None:
    place, draft = tmp_path / "manifests", tmp_path / "draft"
    for directory, ip in ((place, "10.96.0.1"), (draft, "10.96.0.2")):
        directory.mkdir()
        (directory / "a.yaml").write_text(manifest("web", ip))
    async with watching(place) as received:
        place.rename(tmp_path / "old")
        draft.rename(place)
        await received.until_services(web="10.96.0.2")
        (place / "a.yaml").write_text(manifest("web", "10.96.0.3"))
        await received.until_services(web="10.96.0.3")


async def test_one_file_is_watched_without_its_neighbours(tmp_path: Path) -> None:
    path, neighbour = tmp_path / "a.yaml", tmp_path / "b.yaml"
    path.write_text(manifest("web"))
    neighbour.write_text(manifest("api"))
    async with watching(path) as received:
        neighbour.write_text(manifest("api", "10.96.0.9"))
        path.write_text(manifest("web", "10.96.0.2"))
        await received.until_services(web="10.96.0.2")
        path.unlink()
        await received.until_services()
        path.write_text(manifest("web", "10.96.0.3"))
        await received.until_services(web="10.96.0.3")


async def test_other_files_in_the_directory_are_passed_over(tmp_path: Path) -> None:
    for name in ("README.md", ".hidden.yaml", "a.yaml~", "a.yaml.swp"):
        (tmp_path / name).write_text(manifest("ignored"))
    (tmp_path / "sub.yaml").mkdir()
    async with watching(tmp_path) as received:
        await settle(tmp_path, received)
        assert received.services == {}


async def test_an_object_that_becomes_bad_keeps_its_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(manifest("web"))
    async with watching(tmp_path) as received:
        path.write_text("{kind: Service, metadata: {name: web}}\n---\n" + manifest("api"))
        await received.until_services(web="10.96.0.1", api="10.96.0.1")
        assert len(received.problems) == 1
        path.write_text(manifest("api"))
        await received.until_services(api="10.96.0.1")


async def test_the_first_file_wins_a_name_and_the_clash_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("web", "10.96.0.1"))
    (tmp_path / "b.yaml").write_text(manifest("web", "10.96.0.2"))
    async with watching(tmp_path) as received:
        await settle(tmp_path, received)
        assert received.services == {"web": "10.96.0.1"}
        assert len(received.problems) == 1 and "the first file wins" in received.problems[0]
        (tmp_path / "a.yaml").unlink()
        await received.until_services(web="10.96.0.2")


async def test_problems_found_by_an_early_look_are_still_delivered(tmp_path: Path) -> None:
    """The daemon looks for its Node before it delivers; the bad Service must be counted."""
    (tmp_path / "a.yaml").write_text("{kind: Service, metadata: {name: web}}")
    source = ManifestSource(tmp_path)
    assert await source.find_node("node", needs_pod_cidrs=False) is None
    received = Received()
    task = asyncio.create_task(source.run(received, "node"))
    await received.until(lambda: Synced(Kind.SERVICE_CIDR) in received.events)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(received.problems) == 1


def test_a_path_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="--manifests /nowhere: no such file or directory"):
        ManifestSource(Path("/nowhere"))


def test_a_check_for_all_is_the_annotation_of_services_without_one(tmp_path: Path) -> None:
    own = "{kubeproxy/health-check: none, kubeproxy/algorithm: random}"
    (tmp_path / "a.yaml").write_text(
        manifest("web")
        + f"{{kind: Service, metadata: {{name: own, annotations: {own}}},"
        + " spec: {clusterIP: 10.96.0.2}}\n---\n"
        + "{kind: Node, metadata: {name: a}}"
    )
    found = ManifestSource(tmp_path, "tcp fall=2").load()
    checks = {
        each.metadata.name: each.metadata.annotations and each.metadata.annotations.health_check
        for each in found.values()
        if isinstance(each, objects.Service)
    }
    assert checks == {"web": "tcp fall=2", "own": "none"}
    assert (Kind.NODE, "", "a") in found


# --- permissions ---


@contextmanager
def as_nobody() -> Iterator[None]:
    """Become another user, since permissions mean nothing to root; import first what is needed."""
    importlib.import_module("concurrent.futures.thread")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may enter and write."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        yield path


async def test_an_unreadable_file_is_named_and_read_once_it_may_be(
    open_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = open_path / "a.yaml"
    path.write_text(manifest("web"))
    path.chmod(0o000)
    setup_logging(LogOptions())
    try:
        with as_nobody():
            async with watching(open_path) as received:
                assert received.services == {}
                os.seteuid(0)
                path.chmod(0o644)
                os.seteuid(65534)
                await received.until_services(web="10.96.0.1")
    finally:
        stop_logging()
    error = capfd.readouterr().err
    assert "Manifest is left as it was before" in error
    assert "permission denied" in error and "a.yaml" in error


async def test_an_unreadable_directory_keeps_what_was_known(open_path: Path) -> None:
    directory = open_path / "in"
    directory.mkdir()
    directory.chmod(0o777)
    (directory / "a.yaml").write_text(manifest("web"))
    source = ManifestSource(directory)
    with as_nobody():
        assert len(source.load()) == 1
    directory.chmod(0o000)
    with as_nobody():
        assert len(source.load()) == 1
        with pytest.raises(ConfigError, match="permission denied"):
            ManifestSource(directory / "a.yaml")
    directory.chmod(0o777)
