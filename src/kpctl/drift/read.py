"""A report from each place: a running proxy, a bundle, or manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpctl.drift.compare import FamilyDrift, Shown, drift_of, look, look_back, look_twice
from kpctl.drift.hooks import Others, others_of
from kpctl.drift.view import Report
from kpctl.look.offline import OfflineRequest
from kpctl.snapshot.files import read_files_here
from kpctl.snapshot.kernel import read_kernel
from kpctl.snapshot.types import Snapshot
from kubeproxy.errors import ConfigError


async def drift_of_proxy(
    read: Callable[[], Snapshot], pause: Callable[[], object], shown: Shown
) -> Report:
    """Compare the kernel here with what the proxy wants. Raises ProxyError."""
    snapshot, looks = await look_twice(await asyncio.to_thread(read), read, pause)
    status, history = snapshot.status, snapshot.history
    return Report(
        origin=snapshot.origin,
        mode=snapshot.mode,
        families=drift_of(snapshot, looks, shown),
        repairs=history.repairs if history else (),
        others=await _others(snapshot, shown),
        queued=sum(family.queued for family in status.families) if status else 0,
    )


async def _others(snapshot: Snapshot, shown: Shown) -> Others | None:
    """Who else is on our hooks; the short form has nothing about them."""
    return None if shown.most_owners is not None else await others_of(snapshot)


def drift_of_bundle(snapshot: Snapshot, others: Others | None, shown: Shown) -> Report:
    """Compare what a bundle holds of the kernel, if it does. `others` are in its head."""
    families = None
    if snapshot.kernel is not None:
        families = drift_of(snapshot, look_back(snapshot, snapshot.kernel), shown)
    return _of_bundle(snapshot, families, None if shown.most_owners is not None else others)


async def drift_since_bundle(snapshot: Snapshot, shown: Shown) -> Report:
    """Compare the kernel here, now, with what was wanted when a bundle was written.

    Raises ProxyError.
    """
    looks = look(snapshot, await read_kernel(snapshot.backends))
    families = drift_of(snapshot, looks, shown)
    return _of_bundle(snapshot, families, await _others(snapshot, shown))


def _of_bundle(
    snapshot: Snapshot, families: tuple[FamilyDrift, ...] | None, others: Others | None
) -> Report:
    repairs = snapshot.history.repairs if snapshot.history else ()
    return Report(snapshot.origin, snapshot.mode, families, repairs, others)


async def drift_of_files(request: OfflineRequest, shown: Shown) -> Report:
    """Compare the kernel here with what manifests describe. Raises ProxyError."""
    snapshot = await read_files_here(request)
    if snapshot.rejected:
        raise ConfigError(f"{snapshot.rejected} objects are rejected; nothing was compared")
    looks = look(snapshot, await read_kernel(snapshot.backends))
    families = drift_of(snapshot, looks, shown)
    others = await _others(snapshot, shown)
    return Report(snapshot.origin, snapshot.mode, families, None, others)
