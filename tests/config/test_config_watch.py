"""Which changes of the configuration file are noticed, and what they are called."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeproxy.config.watch import ConfigWatch, FileChange
from kubeproxy.errors import KernelError

CONTENT = b"mode: ipvs\n"
OTHER = b"mode: nftables\n"
TIMEOUT_SECONDS = 10


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def watch(config: Path) -> Iterator[ConfigWatch]:
    with ConfigWatch(config, CONTENT) as watch:
        yield watch


def write(path: Path) -> None:
    path.write_bytes(OTHER)


def write_the_same(path: Path) -> None:
    path.write_bytes(CONTENT)


def rename_away(path: Path) -> None:
    path.rename(path.with_name("old"))


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(OTHER)
    new.rename(path)


def replace_with_the_same(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(CONTENT)
    new.rename(path)


def delete(path: Path) -> None:
    path.unlink()


def touch(path: Path) -> None:
    os.utime(path)


def change_mode(path: Path) -> None:
    path.chmod(0o600)


def write_a_neighbour(path: Path) -> None:
    path.with_name("neighbour").write_bytes(OTHER)


@pytest.mark.parametrize(
    ("act", "change"),
    [
        (write, FileChange.WRITTEN),
        (write_the_same, FileChange.WRITTEN),
        (rename_away, FileChange.RENAMED),
        (replace, FileChange.REPLACED),
        (delete, FileChange.DELETED),
        (touch, None),
        (change_mode, None),
        (replace_with_the_same, None),
        (write_a_neighbour, None),
    ],
)
def test_an_action_is_noticed_or_not(
    watch: ConfigWatch,
    config: Path,
    act: Callable[[Path], None],
    change: FileChange | None,
) -> None:
    act(config)
    assert watch.take() is change


def test_after_a_replacement_with_the_same_content_writes_are_noticed(
    watch: ConfigWatch, config: Path
) -> None:
    replace_with_the_same(config)
    assert watch.take() is None
    write(config)
    assert watch.take() is FileChange.WRITTEN


class ConfigMap:
    """A volume as kubelet lays it out: file → ..data/file, ..data → a dated directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "config.conf"
        self._version = 0
        self.publish(CONTENT)
        self.path.symlink_to("..data/config.conf")

    def publish(self, content: bytes) -> None:
        self._version += 1
        dated = self.root / f"..version_{self._version}"
        dated.mkdir()
        (dated / "config.conf").write_bytes(content)
        link = self.root / "..data_tmp"
        link.symlink_to(dated.name)
        link.rename(self.root / "..data")


def test_a_switched_config_map_is_noticed(tmp_path: Path) -> None:
    volume = ConfigMap(tmp_path)
    with ConfigWatch(volume.path, CONTENT) as watch:
        volume.publish(OTHER)
        assert watch.take() is FileChange.SWITCHED


def test_a_config_map_whose_other_files_changed_is_not(tmp_path: Path) -> None:
    """Also later changes are still seen, through the new directory."""
    volume = ConfigMap(tmp_path)
    with ConfigWatch(volume.path, CONTENT) as watch:
        volume.publish(CONTENT)
        assert watch.take() is None
        volume.publish(OTHER)
        assert watch.take() is FileChange.SWITCHED


def test_a_link_elsewhere_is_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "file").write_bytes(CONTENT)
    link = tmp_path / "link"
    link.symlink_to(real)
    with ConfigWatch(link / "file", CONTENT) as watch:
        replace(real / "file")
        assert watch.take() is FileChange.REPLACED


async def test_waiting_ends_with_the_first_change(watch: ConfigWatch, config: Path) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        waiting = asyncio.create_task(watch.changed())
        await asyncio.sleep(0)
        touch(config)
        write_a_neighbour(config)
        await asyncio.sleep(0)
        assert not waiting.done()
        write(config)
        assert await waiting is FileChange.WRITTEN


async def test_a_change_made_before_watching_counts(config: Path) -> None:
    write(config)
    with ConfigWatch(config, CONTENT) as watch:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert await watch.changed() is FileChange.WRITTEN


def test_a_file_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"cannot watch .*missing: No such file or directory"):
        ConfigWatch(tmp_path / "missing", CONTENT)


def test_closing_twice_is_harmless(config: Path) -> None:
    watch = ConfigWatch(config, CONTENT)
    watch.close()
    watch.close()
