"""Manifests behind links, on disks that fail, in directories that vanish: the state stays."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.support.logged import Logging
from tests.support.manifest_kit import manifest, settle, watching
from tests.support.waiting import LIMIT_SECONDS, within_limit

from kubeproxy.api import manifests
from kubeproxy.api.manifest_links import places_of
from kubeproxy.api.manifest_text import Manifest, parse_manifest
from kubeproxy.api.manifests import ManifestSource
from kubeproxy.errors import KernelError
from kubeproxy.kernel.inotify import FileWatch
from kubeproxy.run.workers import Workers

WEB = {"web": "10.96.0.1"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with one manifest."""
    made = tmp_path / "manifests"
    made.mkdir()
    (made / "a.yaml").write_text(manifest("web"))
    return made


# --- directories ---


async def test_a_directory_that_vanishes_keeps_its_objects(
    place: Path, tmp_path: Path, logging: Logging
) -> None:
    with logging() as log:
        async with watching(place) as received:
            place.rename(tmp_path / "elsewhere")
            await log.until("Manifests are left as they were before")
            assert received.services == WEB
            (tmp_path / "elsewhere").rename(place)
            (place / "b.yaml").write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert len(log.lines("Manifests are left as they were before")) == 1
    assert "no such file or directory" in log.text and str(place) in log.text
    assert len(log.lines("Manifests can be read again")) == 1


async def test_a_directory_that_vanishes_with_its_parents_is_found_again(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "c"
    place.mkdir(parents=True)
    (place / "a.yaml").write_text(manifest("web"))
    async with watching(place) as received:
        (tmp_path / "a").rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        await asyncio.sleep(0.2)
        place.mkdir(parents=True)
        (place / "a.yaml").write_text(manifest("web", "10.96.0.2"))
        await received.until_services(web="10.96.0.2")


async def test_an_empty_directory_in_its_place_keeps_the_objects(
    place: Path, tmp_path: Path, logging: Logging
) -> None:
    """As an unmounted volume leaves it."""
    with logging() as log:
        async with watching(place) as received:
            (tmp_path / "empty").mkdir()
            place.rename(tmp_path / "old")
            (tmp_path / "empty").rename(place)
            await log.until("replaced by another one without manifests")
            assert received.services == WEB
            (place / "b.yaml").write_text(manifest("api"))
            await received.until_services(api="10.96.0.1")
            (place / "b.yaml").unlink()
            await received.until_services()
    assert "replaced by another one without manifests" in log.text


async def test_a_file_in_place_of_the_directory_keeps_the_objects(
    place: Path, tmp_path: Path
) -> None:
    async with watching(place) as received:
        place.rename(tmp_path / "old")
        place.write_text("no directory")
        await asyncio.sleep(0.3)
        assert received.services == WEB


async def test_a_directory_that_becomes_unreadable_keeps_its_objects(
    place: Path, monkeypatch: pytest.MonkeyPatch, logging: Logging
) -> None:
    def fail(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with logging() as log:
        async with watching(place) as received:
            with monkeypatch.context() as patch:
                patch.setattr(os, "scandir", fail)
                (place / "b.yaml").write_text(manifest("api"))
                await log.until("permission denied")
                assert received.services == WEB
            # No event follows: the lost read is tried again.
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert len(log.lines("permission denied")) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE])
async def test_a_file_that_could_not_be_read_is_read_later(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tried: list[object] = []

    def fail(*asked: object, **_: object) -> str:
        tried.append(asked)
        raise OSError(number, os.strerror(number))

    async with watching(place) as received:
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "read_regular", fail)
            (place / "a.yaml").write_bytes(manifest("web", "10.96.0.2").encode())
            await received.until(lambda: tried)
            assert received.services == WEB
        await received.until_services(web="10.96.0.2")


async def test_without_inotify_files_are_looked_at(
    place: Path, monkeypatch: pytest.MonkeyPatch, logging: Logging
) -> None:
    def fail(*_: object) -> None:
        raise KernelError("inotify is not available: Too many open files", errno=errno.EMFILE)

    monkeypatch.setattr("kubeproxy.api.manifests.LOOK_SECONDS", 0.05)
    for attribute in ("__init__", "add"):
        with logging() as log, monkeypatch.context() as patch:
            patch.setattr(FileWatch, attribute, fail)
            (place / "a.yaml").write_text(manifest("web"))
            async with watching(place) as received:
                (place / "a.yaml").write_text(manifest("web", "10.96.0.2"))
                await received.until_services(web="10.96.0.2")
        assert len(log.lines("fs.inotify.max_user_watches")) == 1


# --- links ---


async def test_a_rewritten_target_of_a_link_is_noticed(place: Path, tmp_path: Path) -> None:
    target, way = tmp_path / "far" / "real.yaml", tmp_path / "way"
    target.parent.mkdir()
    target.write_text(manifest("api"))
    way.symlink_to(target.parent)
    (place / "b.yaml").symlink_to(way / "real.yaml")
    async with watching(place) as received:
        await received.until_services(web="10.96.0.1", api="10.96.0.1")
        target.write_text(manifest("api", "10.96.0.2"))
        await received.until_services(web="10.96.0.1", api="10.96.0.2")
        draft = target.parent / "draft"
        draft.write_text(manifest("api", "10.96.0.3"))
        draft.rename(target)
        await received.until_services(web="10.96.0.1", api="10.96.0.3")
        other = tmp_path / "other"
        other.mkdir()
        (other / "real.yaml").write_text(manifest("api", "10.96.0.4"))
        (tmp_path / "next").symlink_to(other)
        (tmp_path / "next").rename(way)
        await received.until_services(web="10.96.0.1", api="10.96.0.4")
        (other / "real.yaml").write_text(manifest("api", "10.96.0.5"))
        await received.until_services(web="10.96.0.1", api="10.96.0.5")
        (place / "b.yaml").unlink()
        await received.until_services(**WEB)


async def test_a_target_still_being_written_is_left_alone(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "real.yaml"
    target.write_text(manifest("api") + manifest("more"))
    (place / "b.yaml").symlink_to(target)
    async with watching(place) as received:
        with target.open("w") as file:
            file.write(manifest("api"))
            file.flush()
            await settle(place, received)
            assert set(received.services) == {"web", "api", "more"}
        await received.until_services(web="10.96.0.1", api="10.96.0.1")


async def test_a_link_to_nowhere_keeps_its_objects(
    place: Path, tmp_path: Path, logging: Logging
) -> None:
    target = tmp_path / "real.yaml"
    target.write_text(manifest("api"))
    (place / "b.yaml").symlink_to(target)
    with logging() as log:
        async with watching(place) as received:
            target.unlink()
            await settle(place, received)
            assert set(received.services) == {"web", "api"}
            target.write_text(manifest("api", "10.96.0.2"))
            await received.until_services(web="10.96.0.1", api="10.96.0.2")
    assert len(log.lines("b.yaml", "no such file or directory")) == 1


@pytest.mark.parametrize("name", ["", "a.yaml"])
async def test_a_path_that_is_a_link_is_followed(place: Path, tmp_path: Path, name: str) -> None:
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(place / name)
    other.mkdir()
    (other / "a.yaml").write_text(manifest("web", "10.96.0.3"))
    async with watching(link) as received:
        (place / "a.yaml").write_text(manifest("web", "10.96.0.2"))
        await received.until_services(web="10.96.0.2")
        (tmp_path / "next").symlink_to(other / name)
        (tmp_path / "next").rename(link)
        await received.until_services(web="10.96.0.3")
        (other / "a.yaml").write_text(manifest("web", "10.96.0.4"))
        await received.until_services(web="10.96.0.4")


async def test_links_in_a_circle_end(place: Path, logging: Logging) -> None:
    (place / "b.yaml").symlink_to("c.yaml")
    (place / "c.yaml").symlink_to("b.yaml")
    with logging():
        async with watching(place) as received:
            await settle(place, received)
            assert received.services == WEB
    assert len(places_of(place / "b.yaml")) <= 42


async def test_names_that_are_no_text_are_read_and_logged(place: Path, logging: Logging) -> None:
    with logging() as log:
        async with watching(place) as received:
            (Path(os.fsdecode(os.fsencode(place) + b"/b\xff\n.yaml"))).write_text("[")
            (Path(os.fsdecode(os.fsencode(place) + b"/c\xff.yaml"))).write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert len(log.lines("Manifest is left as it was before")) == 1


async def test_a_link_whose_target_has_no_possible_name_stops_no_other_file(
    place: Path, logging: Logging
) -> None:
    with logging() as log:
        async with watching(place) as received:
            (place / "b.yaml").symlink_to("x" * 300)
            (place / "c.yaml").write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert 'err="file name too long"' in log.text and "b.yaml" in log.text


async def test_a_file_that_fails_when_it_is_read_stops_no_other_file(
    place: Path, logging: Logging
) -> None:
    with logging() as log:
        async with watching(place) as received:
            (place / "b.yaml").symlink_to("/proc/self/mem")
            (place / "c.yaml").write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert "Manifest is left as it was before; trying again" in log.text


async def test_a_pipe_put_in_place_of_a_file_is_not_waited_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced after its kind was looked at."""
    monkeypatch.setattr(manifests, "_is_manifest", lambda _: True)
    os.mkfifo(place / "b.yaml")
    async with watching(place) as received:
        (place / "c.yaml").write_text(manifest("api"))
        await received.until_services(web="10.96.0.1", api="10.96.0.1")


async def test_a_file_that_is_too_large_is_named(
    place: Path, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MOST_BYTES", 1000)
    with logging() as log:
        async with watching(place) as received:
            (place / "b.yaml").write_text("#" * 1001)
            (place / "c.yaml").write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")
    assert "it has more than 1000 bytes" in log.text


async def test_other_encodings_are_named(place: Path, logging: Logging) -> None:
    with logging() as log:
        async with watching(place) as received:
            (place / "b.yaml").write_text(manifest("api"), "utf-16")
            await settle(place, received)
    assert "not text in UTF-8 (byte 0); save the file in this encoding" in log.text


async def test_other_tasks_run_while_a_file_is_parsed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of some megabytes takes as many seconds, in which health checks want answers."""
    async with watching(place) as received:
        loop, parsing = asyncio.get_running_loop(), asyncio.Event()
        release = threading.Event()

        def parse(text: str) -> Manifest:
            loop.call_soon_threadsafe(parsing.set)
            assert release.wait(LIMIT_SECONDS)
            return parse_manifest(text)

        monkeypatch.setattr(manifests, "parse_manifest", parse)
        (place / "b.yaml").write_text(manifest("api"))
        await within_limit(parsing.wait())
        release.set()
        await received.until_services(web="10.96.0.1", api="10.96.0.1")


async def test_without_threads_files_are_read_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor of the daemon's event loop sees to it."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    asyncio.get_running_loop().set_default_executor(Workers())
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        async with watching(place) as received:
            (place / "b.yaml").write_text(manifest("api"))
            await received.until_services(web="10.96.0.1", api="10.96.0.1")


# --- what has no effect ---

SLICE = """
{{kind: EndpointSlice, addressType: IPv4,
  metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}},
  ports: [{{port: {port}}}], endpoints: [{{addresses: [10.1.0.1]}}]}}
"""
TARGET = (
    "{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1,"
    " ports: [{port: 80, targetPort: 8080}]}}\n"
)


async def test_unknown_fields_and_kinds_are_named_once(place: Path, logging: Logging) -> None:
    text = manifest("api").replace("clusterIP", "clusterIp: x, clusterIP")
    with logging() as log:
        async with watching(place) as received:
            for ip in ("10.96.0.5", "10.96.0.6"):
                more = "{kind: Deployment, apiVersion: apps/v1}\n"
                (place / "b.yaml").write_text(text.replace("10.96.0.1", ip) + more)
                await received.until_services(web="10.96.0.1", api=ip)
    assert len(log.lines('unknown field \\"spec.clusterIp\\" is ignored')) == 1
    assert len(log.lines("kind Deployment of apps/v1 is ignored")) == 1
    assert str(place / "b.yaml") in log.text


@pytest.mark.parametrize(
    ("slice_", "note"),
    [
        (SLICE.format(port=8080), ""),
        (SLICE.format(port=80), "traffic goes to 80, which they have instead"),
        (SLICE.format(port=8080).replace("{port", "{name: x, port"), "no port of the name"),
        ("", "no EndpointSlice names this Service"),
    ],
)
async def test_a_target_port_that_no_slice_serves_is_named(
    tmp_path: Path, logging: Logging, slice_: str, note: str
) -> None:
    (tmp_path / "a.yaml").write_text(f"{TARGET}---\n{slice_}")
    with logging() as log:
        source = ManifestSource(tmp_path)
        source.load()
        source.load()
    assert len(log.lines("targetPort 8080 of port")) == (1 if note else 0)
    assert note in log.text


async def test_a_file_that_memory_did_not_suffice_for_is_read_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, logging: Logging
) -> None:
    def fail(_: str) -> Manifest:
        raise MemoryError

    with logging() as log, monkeypatch.context() as patch:
        patch.setattr(manifests, "parse_manifest", fail)
        source = ManifestSource(place)
        assert source.load() == {}
        patch.undo()
        assert source.load()
    assert len(log.lines("cannot allocate memory")) == 1
