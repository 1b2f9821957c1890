"""When something was committed, as the kernel shows it.

nf_tables notifies its listeners of every new generation: that is the commit. The old iptables has
no such event, so there a commit is the end of `iptables-restore`, reported by a wrapper around the
program that both proxies find in PATH. Either way the time is taken here, in the event loop, with
one clock for both programs.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kpctl.bench.moments import Moments

_SOL_NETLINK = 270
_ADD_MEMBERSHIP = 1
_SO_ATTACH_FILTER = 26
_NETLINK_NETFILTER = 12
_GROUP_NFTABLES = 7
_NEW_GENERATION = 0x0A0F
"""Subsystem nf_tables, message NEWGEN; a commit's last message, in a datagram of its own."""

_IPV4 = 2
_LOAD_TYPE = (0x28, 0, 0, 4)  # ldh [4]
_LOAD_FAMILY = (0x30, 0, 0, 16)  # ldb [16]

_LEGACY = "xtables-legacy-multi"
_WRAPPED = "iptables-restore"
_INPUT = "input"
_PLAIN = ("iptables", "iptables-save", "ip6tables", "ip6tables-save", "ip6tables-restore")


class _Source(Protocol):
    def fileno(self) -> int: ...

    def close(self) -> None: ...


class CommitClock(Moments):
    """Times of commits, taken while the event loop runs."""

    def __init__(self, source: _Source, read: Callable[[], int]) -> None:
        """`read` reads what there is now and returns the number of commits in it."""
        super().__init__()
        self._source = source
        self._read = read
        asyncio.get_running_loop().add_reader(source.fileno(), self._take)

    def _take(self) -> None:
        now = time.monotonic()
        self.add(now, self._read())

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._source.fileno())
        self._source.close()


def nft_clock() -> CommitClock:
    """Commits to nf_tables in the network namespace of the caller, of either family."""
    # Pass only new generations: thousands of messages about single objects would overflow the
    # socket. The type field is in host order, and classic BPF loads it in network order, hence
    # the swap.
    swapped = struct.unpack(">H", struct.pack("=H", _NEW_GENERATION))[0]
    return _nft_clock(_LOAD_TYPE, swapped)


def nft_ipv4_clock() -> CommitClock:
    """Commits that change something of IPv4, recognised by the changes themselves.

    A generation has no family. The kernel sends the changes right before the generation, and only
    after a cold start are they few enough to listen to.
    """
    return _nft_clock(_LOAD_FAMILY, _IPV4)


def _nft_clock(load: tuple[int, int, int, int], wanted: int) -> CommitClock:
    listener = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER
    )
    listener.bind((0, 0))
    _pass_only(listener, load, wanted)
    listener.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)

    def read() -> int:
        listener.recv(1 << 16)
        return 1

    return CommitClock(listener, read)


def _pass_only(listener: socket.socket, load: tuple[int, int, int, int], wanted: int) -> None:
    """Have the kernel filter out datagrams in which a field has another value."""
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            load,
            (0x15, 1, 0, wanted),  # jeq wanted, skip, next
            (0x06, 0, 0, 0),  # ret 0
            (0x06, 0, 0, 0xFFFFFFFF),  # ret all
        )
    )
    buffer = ctypes.create_string_buffer(program)
    pointer = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


class RestoreTools:
    """A folder for PATH: the old iptables, with a restore that reports its end."""

    def __init__(self, folder: Path, *, keeps_inputs: bool = False) -> None:
        """With `keeps_inputs` it keeps its input instead of reporting its end."""
        self.folder = folder
        self._pipe = folder / "commits"
        folder.mkdir()
        os.mkfifo(self._pipe)
        for name in _PLAIN:
            (folder / name).write_text(f'#!/bin/sh\nexec {_LEGACY} {name} "$@"\n')
        script = _keeper(folder / _INPUT) if keeps_inputs else _wrapper(self._pipe)
        (folder / _WRAPPED).write_text(script)
        for name in (*_PLAIN, _WRAPPED):
            (folder / name).chmod(0o755)

    def clock(self) -> CommitClock:
        """Ends of IPv4 restores from now on."""
        # Opened for writing too: with a reader and a writer at all times, no open blocks.
        pipe = os.fdopen(os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        return CommitClock(pipe, lambda: (pipe.read(65536) or b"").count(b"\n"))

    def inputs(self) -> list[Path]:
        """What was restored, a file for each restore, renamed when that had ended."""
        return list(self.folder.glob(f"{_INPUT}.*.done"))

    def environment(self) -> dict[str, str]:
        path = f"{self.folder}:{os.environ.get('PATH', '')}"
        # A lock of our own: these tables have nothing to do with other namespaces' here.
        return {"PATH": path, "XTABLES_LOCKFILE": str(self.folder / "xtables.lock")}


def _wrapper(pipe: Path) -> str:
    return f"""#!/bin/sh
{_LEGACY} {_WRAPPED} "$@"
status=$?
case "$*" in *--version*) ;; *) echo end > {pipe} ;; esac
exit $status
"""


def _keeper(kept: Path) -> str:
    return f"""#!/bin/sh
cat > {kept}.$$
{_LEGACY} {_WRAPPED} "$@" < {kept}.$$
status=$?
[ $status = 0 ] && mv {kept}.$$ {kept}.$$.done
exit $status
"""
