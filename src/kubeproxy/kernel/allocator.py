"""The C library's allocator: what is freed goes back to the kernel.

By default glibc raises the size from which a block is mapped by itself whenever such a block is
freed, up to 32 MB. Soon even lists of megabytes come from the heap, and one small block behind such
a hole keeps it resident. A proxy frees large blocks all the time (answers, listings, batches), so
its memory would creep up for a day to a multiple of what it holds. Fixed sizes end that: a large
block is mapped, and unmapped when it is freed.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_BYTES = 64 << 10
"""Larger than nearly every block that lives long. Smaller would be many mappings."""
_SIZES = {
    _MMAP_THRESHOLD: _BYTES,
    _TRIM_THRESHOLD: _BYTES,
    _TOP_PAD: _BYTES,
    # One heap for all threads: they take turns anyway, and each heap would keep its own holes.
    _ARENA_MAX: 1,
}


def return_freed_memory() -> bool:
    """Fix the sizes for this process. Return whether its C library can (musl cannot)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*each) == 1 for each in _SIZES.items())
