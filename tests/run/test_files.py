"""Reading files that other people write."""

from __future__ import annotations

import os
import threading
import tracemalloc
from pathlib import Path

import pytest

from kubeproxy.kernel.files import read_limited, read_regular

MOST = 3 << 20


@pytest.mark.parametrize("size", [0, 1, 1000, MOST - 1, MOST])
def test_a_file_is_read_to_its_end(size: int, tmp_path: Path) -> None:
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    assert read_regular(tmp_path / "file", MOST) == content
    assert read_limited(tmp_path / "file", MOST) == content


@pytest.mark.parametrize("path", ["/dev/zero", "file"])
def test_a_file_beyond_the_limit_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(MOST + 1))
    with pytest.raises(OSError, match=f"more than {MOST} bytes"):
        read_limited(tmp_path / path, MOST)


def test_files_that_do_not_know_their_size_are_read_to_their_end(tmp_path: Path) -> None:
    """Of the kernel, and pipes."""
    assert read_regular("/proc/self/status", MOST).startswith(b"Name:")
    os.mkfifo(tmp_path / "pipe")
    content = os.urandom(MOST // 2)
    thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(content))
    thread.start()
    assert read_limited(tmp_path / "pipe", MOST) == content
    thread.join()


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"small")
    tracemalloc.start()
    try:
        read_regular(tmp_path / "file", 1 << 30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
