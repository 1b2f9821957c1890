"""Nodes whose kernel is another than the host's, for modes that the host's has not got.

The control plane stays on the host; a node's containerd, kubelet and pods run in a guest kernel
that is plugged into the same switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kpctl.apiserver.build import cache_folder
from kpctl.kubernetes import guest_init
from kpctl.kubernetes.control import ControlPlane
from kpctl.kubernetes.guest_init import GuestSpec
from kpctl.kubernetes.network import NodePlace, connect_tap
from kpctl.places.debian_kernel import find_kernel
from kpctl.places.guest import GuestKernel, Wire
from kpctl.places.qemu import EmulatedKernel
from kpctl.places.uml import UserModeKernel
from kubeproxy.errors import KernelError

USER_MODE = "uml"
_MEMORY = "4096M"
_START_SECONDS = 3600.0


class GuestNode:
    """A node in a kernel of its own: user-mode Linux, or a package of Debian's in QEMU."""

    def __init__(self, place: NodePlace, control: ControlPlane, kernel: str) -> None:
        """Boot the kernel. It ends with the thread that does this, if not by `close`."""
        self.place = place
        self._control = control
        self._is_user_mode = kernel == USER_MODE
        wire = Wire(control.machine.network, connect_tap(control.machine, place))
        self._kernel = _kernel(kernel, wire)
        self._kernel.__enter__()

    def start(self, archives: Sequence[Path], numbers: Sequence[int], login_key: str) -> None:
        """Load images and start the kubelet. Raises `KernelError`."""
        spec = GuestSpec(
            number=self.place.number,
            numbers=tuple(numbers),
            card=self._kernel.card,
            archives=tuple(map(str, archives)),
            credentials=self._control.node_credentials(self.place.name),
            login_key=login_key,
            is_user_mode=self._is_user_mode,
        )
        wrong = self._kernel.call(
            *(Path(guest_init.__file__), "start", msgspec.json.encode(spec).decode(), _cache()),
            timeout_seconds=_START_SECONDS,
        )
        if wrong:
            raise KernelError(f"{self.place.name} does not start: {wrong}")

    def log(self, program: str, lines: int = 20) -> str:
        """The end of the log of `containerd` or `kubelet`."""
        return str(self._kernel.call(Path(guest_init.__file__), "log", program, lines))

    def close(self) -> None:
        self._kernel.close()


def _cache() -> str:
    """The user's cache, where programs are: a guest's user has another home."""
    return str(cache_folder("").parent)


def _kernel(name: str, wire: Wire) -> GuestKernel:
    if name == USER_MODE:
        return UserModeKernel(memory=_MEMORY, wire=wire)
    return EmulatedKernel(find_kernel(name), memory=_MEMORY, wire=wire)
