"""What the kernel holds now of what is a proxy's, read in the network namespace that is current."""

from __future__ import annotations

from collections.abc import Mapping

from kpctl.snapshot.types import KernelState
from kubeproxy.facts.ids import Family
from kubeproxy.modes.base import AnyBackend, AnyItem, AnyValue


async def read_kernel(backends: Mapping[Family, AnyBackend]) -> KernelState:
    """Read every family; nothing is changed. Raises KernelError."""
    return {family: await _read(backend) for family, backend in backends.items()}


async def _read(backend: AnyBackend) -> dict[AnyItem, AnyValue]:
    found: dict[AnyItem, AnyValue] = {}
    try:
        await backend.probe()
        for sink in backend.kernel_sinks:
            found |= await sink.read()
    finally:
        await backend.close()
    return found
