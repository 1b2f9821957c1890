"""A kernel that operators run, in a machine of QEMU's.

Unlike user-mode Linux it has all modules at once (nf_tables, ip_vs, ipset, dummy, sctp) and more
than one processor, and it may be any release. The processor's own virtualisation is used where a
kernel boots with it; else the machine is emulated, which is ten to thirty times slower.

The host's files are the guest's root, read-only, or a folder of them is (`root`), in which the
guest may write (to memory) and whose own /sbin/init runs; the host's are then under /host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from kpctl.places.debian_kernel import Kernel
from kpctl.places.guest import AGENT, SOURCES, GuestError, GuestKernel, Wire
from kpctl.places.initramfs import pack_initramfs, read_modules

PROGRAM = "qemu-system-x86_64"
HOST = "/host"
_BUSYBOX = "busybox"
_DEVICE = "/dev/vport*p1"
_NEEDED = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
_KERNEL_WORDS = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check nowatchdog"
"""A busy machine emulates a timer that seems not to work; what only costs time is off."""
_START = """\
#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
"""
_HOST_AS_ROOT = "exec switch_root /host {init}\n"
_FOLDER_AS_ROOT = """\
mount -t tmpfs changes /changes
mkdir /changes/upper /changes/work
mount -t overlay -o lowerdir=/host{root},upperdir=/changes/upper,workdir=/changes/work root /root
mkdir -p /root/host /root/lib/modules /root/etc/systemd/system/multi-user.target.wants
mount --move /host /root/host
mount --bind /root/host{modules} /root/lib/modules
cp /root/host{unit} /root/etc/systemd/system/guest-agent.service
ln -s ../guest-agent.service /root/etc/systemd/system/multi-user.target.wants/guest-agent.service
exec switch_root /root /sbin/init
"""
_UNIT = """\
[Unit]
Description=serves the calls of a test

[Service]
Environment=PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={host}{sources}
ExecStart=/bin/sh -c 'exec /usr/bin/python3.11 {host}{agent} {device}'
StandardError=tty
TTYPath=/dev/ttyS0
"""

_EMULATED = "tcg,thread=single"
"""One thread for all processors: with more, a kernel that patches its own code on one processor now
and then dies of it on another (seen at boot: "Oops: int3" in sched_clock_cpu)."""
_accelerators = [("-accel", "kvm", "-cpu", "host"), ("-accel", _EMULATED)]
"""Those that may work, the best first. One that has failed is not tried again."""
_SECONDS = {"kvm": 60.0, _EMULATED: 900.0}


def missing() -> str:
    """Why no kernel can be booted this way here. Empty if it can."""
    if shutil.which(PROGRAM) is None:
        return f'{PROGRAM} is not installed (package "qemu-system-x86")'
    if shutil.which(_BUSYBOX) is None:
        return 'busybox is not installed (package "busybox-static")'
    if os.geteuid() != 0:
        return "reading all of the host's files, as the guest does, needs root"
    return ""


class EmulatedKernel(GuestKernel):
    """One booted kernel in a machine of QEMU's."""

    card = "eth0"

    def __init__(
        self,
        kernel: Kernel,
        *,
        root: Path | None = None,
        memory: str = "2G",
        processors: int = 2,
        preload: Sequence[str] = (),
        paths: Sequence[Path] = (),
        wire: Wire | None = None,
    ) -> None:
        super().__init__(preload=preload, paths=paths, wire=wire)
        self.kernel = kernel
        self._root = root
        self._memory = memory
        self._processors = processors

    def _why_not(self) -> str:
        return missing()

    @property
    def boot_seconds(self) -> float:
        return _SECONDS[_accelerators[0][1]]

    def _boot(self) -> None:
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            del _accelerators[:-1]
        try:
            super()._boot()
        except GuestError:
            if self._why_not() or len(_accelerators) == 1:
                raise
            del _accelerators[0]
            self._stop()
            self._boot()

    def _command(self, line: int) -> Sequence[str]:
        initramfs = self._folder / "initramfs"
        initramfs.write_bytes(self._initramfs())
        return [
            PROGRAM,
            *_accelerators[0],
            *("-smp", str(self._processors), "-m", self._memory),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(self.kernel.image), "-initrd", str(initramfs)),
            *("-append", _KERNEL_WORDS),
            *("-serial", "stdio"),
            # Many file systems of the host are one here: file numbers must not meet.
            "-virtfs",
            "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
            *("-device", "virtio-serial-pci", "-chardev", f"socket,id=calls,fd={line}"),
            *("-device", "virtserialport,chardev=calls,name=calls"),
            *self._network_card(),
        ]

    def _nudge(self) -> None:
        """It needs nothing."""

    def _network_card(self) -> Sequence[str]:
        if self._wire is None:
            return ()
        tap = f"tap,id=wire,ifname={self._wire.device},script=no,downscript=no"
        return ("-netdev", tap, "-device", "virtio-net-pci,netdev=wire")

    def _initramfs(self) -> bytes:
        busybox = Path(shutil.which(_BUSYBOX) or _BUSYBOX).read_bytes()
        needed = (*_NEEDED, "virtio_net") if self._wire else _NEEDED
        modules = list(read_modules(self.kernel.modules, needed))
        return pack_initramfs(busybox, _START + self._find_root(), modules)

    def _find_root(self) -> str:
        if self._root is None:
            return _HOST_AS_ROOT.format(init=self._write_init(self.kernel.folder, "", _DEVICE))
        unit = _UNIT.format(host=HOST, sources=SOURCES, agent=AGENT, device=_DEVICE)
        return _FOLDER_AS_ROOT.format(
            root=self._root,
            modules=self.kernel.modules.parent,
            unit=self._write_script("guest-agent.service", unit),
        )
