"""A report from each place: a running proxy, a bundle, or manifests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpctl.drift.compare import drift_of, look, look_twice
from kpctl.drift.hooks import others_of
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


def drift_of_bundle(snapshot: Snapshot, *, is_short: bool) -> Report:
    """Compare what a bundle holds of the kernel, if it does."""
    families = None
    if snapshot.kernel is not None:
        looks = look(snapshot, snapshot.kernel, listening=None)
        families = drift_of(snapshot, looks, _most(is_short))
    history = snapshot.history
    return Report(snapshot.origin, snapshot.mode, families, history.repairs if history else ())


async def drift_of_files(request: OfflineRequest, *, is_short: bool) -> Report:
    """Compare the kernel here with what manifests describe. Raises ProxyError."""
    snapshot = await read_files_here(request)
    if snapshot.rejected:
        raise ConfigError(f"{snapshot.rejected} objects are rejected; nothing was compared")
    looks = look(snapshot, await read_kernel(snapshot.backends))
    families = drift_of(snapshot, looks, _most(is_short))
    others = await others_of(snapshot) if not is_short else None
    return Report(snapshot.origin, snapshot.mode, families, None, others)
