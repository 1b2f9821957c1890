"""A report from each place: a running proxy, a bundle, or manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpctl.drift.compare import FamilyDrift, drift_of, look, look_back, look_twice
from kpctl.drift.hooks import Others, others_of
from kpctl.drift.view import MOST_OWNERS, Report
from kpctl.look.offline import OfflineRequest
from kpctl.snapshot.files import read_files_here
from kpctl.snapshot.kernel import read_kernel
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ConfigError


async def drift_of_proxy(
    read: Callable[[], Snapshot], pause: Callable[[], object], *, is_short: bool
) -> Report:
    """Compare the kernel here with what the proxy wants. Raises ProxyError.

    The short form has the first owners that differ, and nothing about other programs.
    """
    snapshot, families = await look_twice(
        await asyncio.to_thread(read), read, pause, _most(is_short)
    )
    status, history = snapshot.status, snapshot.history
    return Report(
        origin=snapshot.origin,
        mode=snapshot.mode,
        families=families,
        repairs=history.repairs if history else (),
        others=await others_of(snapshot) if not is_short else None,
        queued=sum(family.queued for family in status.families) if status else 0,
    )


def _most(is_short: bool) -> int | None:
    return MOST_OWNERS if is_short else None


def drift_of_bundle(snapshot: Snapshot, others: Others | None, *, is_short: bool) -> Report:
    """Compare what a bundle holds of the kernel, if it does. `others` are in its head."""
    families = None
    if snapshot.kernel is not None:
        looks = look_back(snapshot, snapshot.kernel)
        families = drift_of(snapshot, looks, _most(is_short))
    return _of_bundle(snapshot, families, None if is_short else others)


async def drift_since_bundle(snapshot: Snapshot, *, is_short: bool) -> Report:
    """Compare the kernel here, now, with what was wanted when a bundle was written.

    Raises ProxyError.
    """
    looks = look(snapshot, await read_kernel(snapshot.backends))
    others = await others_of(snapshot) if not is_short else None
    return _of_bundle(snapshot, drift_of(snapshot, looks, _most(is_short)), others)


def _of_bundle(
    snapshot: Snapshot, families: tuple[FamilyDrift, ...] | None, others: Others | None
) -> Report:
    repairs = snapshot.history.repairs if snapshot.history else ()
    return Report(snapshot.origin, snapshot.mode, families, repairs, others)


async def drift_of_files(request: OfflineRequest, *, is_short: bool) -> Report:
    """Compare the kernel here with what manifests describe. Raises ProxyError."""
    snapshot = await read_files_here(request)
    if snapshot.rejected:
        raise ConfigError(f"{snapshot.rejected} objects are rejected; nothing was compared")
    looks = look(snapshot, await read_kernel(snapshot.backends))
    families = drift_of(snapshot, looks, _most(is_short))
    others = await others_of(snapshot) if not is_short else None
    return Report(snapshot.origin, snapshot.mode, families, None, others)
