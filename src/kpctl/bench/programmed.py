"""When the kernel of a node was given each endpoint's address, found in what is written to it.

nf_tables: a process of its own in the node's network namespace reads the notifications that follow
each commit (`python -m kpctl.bench.programmed`), so that neither the API server nor the writers,
which run in the benchmark's process, delay it. The old iptables: the input of every restore is kept
(`RestoreTools`), and its time is that of the renaming after the restore has ended.

Only the addresses of the benchmark's own endpoints are looked for, in the form in which rules and
elements have them: four bytes, or text. Both programs' rules have one of these forms.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kpctl.bench.cluster import ENDPOINT_CIDR
from kpctl.bench.commits import RestoreTools
from kpctl.places.network import PrivateNetwork
from kubeproxy.errors import ProxyError

_NETWORK = ipaddress.IPv4Network(ENDPOINT_CIDR)
_LOW, _HIGH = _NETWORK[0].packed[1:2], _NETWORK[-1].packed[1:2]
_PACKED = re.compile(b"\\x0a[" + re.escape(_LOW) + b"-" + re.escape(_HIGH) + b"]..", re.S)
_TEXT = re.compile(rb"--to-destination (10\.\d+\.\d+\.\d+):")
_SOL_NETLINK, _ADD_MEMBERSHIP, _SO_RCVBUFFORCE = 270, 1, 33
_NETLINK_NETFILTER, _GROUP_NFTABLES = 12, 7
_READY = b"ready\n"


def packed_addresses(message: bytes) -> set[str]:
    """Addresses of endpoints in a message of nf_tables, and perhaps what looks like one."""
    # Not only at every fourth byte: a concatenation may be packed without padding.
    return {".".join(map(str, found)) for found in _PACKED.findall(message)}


def text_addresses(text: bytes) -> set[str]:
    """Addresses to which the rules of restore input translate."""
    return {found.decode() for found in _TEXT.findall(text)}


class NftObserver:
    """A process that notes what is committed in a node's network namespace."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "programmed"

    @contextlib.contextmanager
    def observing(self, node: PrivateNetwork) -> Iterator[None]:
        """Observe from now on, until the end of the context."""
        with self._output.open("wb") as output, node.inside():
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", __name__],
                stdout=output,
                stdin=subprocess.DEVNULL,
            )
        try:
            while _READY not in self._output.read_bytes():
                if process.poll() is not None:
                    raise ProxyError("nf_tables cannot be observed")
                time.sleep(0.01)
            yield
        finally:
            process.kill()
            process.wait()

    def first_times(self) -> dict[str, float]:
        """By address: when it was first committed."""
        found: dict[str, float] = {}
        # The last line may be cut short, and then has no end.
        whole, _, _ = self._output.read_text().removeprefix(_READY.decode()).rpartition("\n")
        for line in whole.splitlines():
            moment, _, addresses = line.partition(" ")
            for address in addresses.split(","):
                found.setdefault(address, float(moment))
        return found


class RestoreObserver:
    """The inputs of restores, kept by the tools that both programs find in PATH."""

    def __init__(self, tools: RestoreTools) -> None:
        self._tools = tools

    @contextlib.contextmanager
    def observing(self, node: PrivateNetwork) -> Iterator[None]:
        """Forget what was restored before."""
        for path in self._tools.inputs():
            path.unlink()
        yield

    def first_times(self) -> dict[str, float]:
        """By address: when a restore with it had first ended."""
        offset = time.monotonic() - time.time()
        found: dict[str, float] = {}
        for path in sorted(self._tools.inputs(), key=lambda path: path.stat().st_ctime_ns):
            moment = path.stat().st_ctime + offset
            for address in text_addresses(path.read_bytes()):
                found.setdefault(address, moment)
        return found


Observer = NftObserver | RestoreObserver


def main() -> None:
    """Write a line for each notification that has addresses: the time, and these."""
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    listener.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 27)
    listener.bind((0, 0))
    listener.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)
    output = sys.stdout.buffer
    output.write(_READY)
    output.flush()
    while True:
        with contextlib.suppress(OSError):  # more than fits: what is lost is not known
            message = listener.recv(1 << 18)
            now = time.monotonic()
            if addresses := packed_addresses(message):
                output.write(f"{now} {','.join(addresses)}\n".encode())
                output.flush()


if __name__ == "__main__":
    main()
