"""Which changes of the configuration file are noticed, and what is found then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.waiting import within_limit

from kubeproxy.config import watch as watch_module
from kubeproxy.config.watch import ConfigWatch, FileContent, is_regular_file, read_content
from kubeproxy.errors import KernelError

CONTENT = b"mode: ipvs\n"
OTHER = b"mode: nftables\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def watch(config: Path) -> Iterator[ConfigWatch]:
    with ConfigWatch(config, CONTENT) as watch:
        yield watch


async def next_content(watch: ConfigWatch) -> FileContent:
    return await within_limit(watch.changed())


async def changed_after(watch: ConfigWatch, act: Callable[[], object]) -> FileContent:
    """What is found after an action that came when the watch was already waiting."""
    waiting = asyncio.create_task(next_content(watch))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    act()
    return await waiting


def replace(path: Path, content: bytes = OTHER) -> None:
    new = path.with_name("new")
    new.write_bytes(content)
    new.rename(path)


def become_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("act", [lambda path: path.write_bytes(OTHER), replace])
async def test_another_content_is_found(
    watch: ConfigWatch, config: Path, act: Callable[[Path], None]
) -> None:
    assert await changed_after(watch, lambda: act(config)) == FileContent(OTHER)


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda path: path.unlink(), "no such file or directory"),
        (lambda path: path.rename(path.with_name("old")), "no such file or directory"),
        (become_a_pipe, "it is not a regular file"),
        (become_a_directory, "is a directory"),
        (lambda path: path.write_bytes(b"#" * (1 << 21)), "it has more than 1048576 bytes"),
    ],
)
async def test_what_cannot_be_read_says_why(
    watch: ConfigWatch, config: Path, act: Callable[[Path], None], problem: str
) -> None:
    found = await changed_after(watch, lambda: act(config))
    assert found.content is None
    assert problem in found.problem and str(config) in found.problem


@pytest.mark.parametrize(
    "act",
    [
        os.utime,
        lambda path: path.chmod(0o600),
        lambda path: path.write_bytes(CONTENT),
        lambda path: replace(path, CONTENT),
        lambda path: path.with_name("neighbour").write_bytes(OTHER),
    ],
)
async def test_the_same_content_is_no_change(
    watch: ConfigWatch, config: Path, act: Callable[[Path], None]
) -> None:
    """A later change is still found, also if the file is another one by then."""
    waiting = asyncio.create_task(next_content(watch))
    await asyncio.sleep(0.05)
    act(config)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    config.write_bytes(OTHER)
    assert await waiting == FileContent(OTHER)


async def test_every_change_is_found_one_after_the_other(watch: ConfigWatch, config: Path) -> None:
    config.unlink()
    assert (await next_content(watch)).content is None
    config.write_bytes(OTHER)
    assert await next_content(watch) == FileContent(OTHER)
    replace(config, CONTENT)
    assert await next_content(watch) == FileContent(CONTENT)


async def test_a_file_written_in_pieces_is_taken_as_a_whole(
    watch: ConfigWatch, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is another one at each look it is not complete."""
    pieces = [b"####", b"###", b"##"]

    async def write_more(_seconds: float) -> None:
        if pieces:
            config.write_bytes(pieces.pop())

    monkeypatch.setattr(asyncio, "sleep", write_more)
    config.write_bytes(b"#")
    assert await next_content(watch) == FileContent(b"####")


class ConfigMap:
    """A volume as kubelet lays it out: file → ..data/file, ..data → a dated directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "config.conf"
        self._version = 0
        self.publish(CONTENT)
        self.path.symlink_to("..data/config.conf")

    def publish(self, content: bytes | None) -> None:
        """Switch to a new version; None leaves the key out."""
        self._version += 1
        dated = self.root / f"..version_{self._version}"
        dated.mkdir()
        if content is not None:
            (dated / "config.conf").write_bytes(content)
        link = self.root / "..data_tmp"
        link.symlink_to(dated.name)
        link.rename(self.root / "..data")


async def test_a_switched_config_map_is_found_again_and_again(tmp_path: Path) -> None:
    volume = ConfigMap(tmp_path)
    with ConfigWatch(volume.path, CONTENT) as watch:
        found = await changed_after(watch, lambda: volume.publish(OTHER))
        assert found == FileContent(OTHER)
        assert (await changed_after(watch, lambda: volume.publish(None))).content is None
        volume.publish(OTHER)
        assert await next_content(watch) == FileContent(OTHER)


async def test_a_directory_that_is_replaced_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "proxy"
    folder.mkdir(parents=True)
    config = folder / "config.yaml"
    config.write_bytes(CONTENT)
    with ConfigWatch(config, CONTENT) as watch:
        found = await changed_after(watch, lambda: folder.parent.rename(tmp_path / "old"))
        assert found.content is None
        folder.mkdir(parents=True)
        config.write_bytes(OTHER)
        assert await next_content(watch) == FileContent(OTHER)


async def test_a_link_elsewhere_is_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").write_bytes(CONTENT)
    link = tmp_path / "link"
    link.symlink_to(real)
    with ConfigWatch(link / "file", CONTENT) as watch:
        found = await changed_after(watch, lambda: replace(real / "file"))
        assert found == FileContent(OTHER)


async def test_a_change_made_before_watching_counts(config: Path) -> None:
    config.write_bytes(OTHER)
    with ConfigWatch(config, CONTENT) as watch:
        assert await next_content(watch) == FileContent(OTHER)


async def test_without_inotify_the_file_is_looked_at_now_and_then(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise KernelError("inotify is not available: too many open files")

    monkeypatch.setattr(watch_module, "FileWatch", refuse)
    monkeypatch.setattr(watch_module, "POLL_SECONDS", 0.01)
    with ConfigWatch(config, CONTENT) as watch:
        found = await changed_after(watch, lambda: config.write_bytes(OTHER))
        assert found == FileContent(OTHER)


def test_a_pipe_is_no_file_to_follow(tmp_path: Path, config: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_regular_file(str(tmp_path / "pipe"))
    assert is_regular_file(str(config))
    assert is_regular_file(str(tmp_path / "missing"))
    assert read_content(tmp_path / "pipe").problem.endswith("it is not a regular file")


def test_closing_twice_is_harmless(config: Path) -> None:
    watch = ConfigWatch(config, CONTENT)
    watch.close()
    watch.close()
