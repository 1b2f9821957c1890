"""The CPU sampler finds the busy function; profiles encode as pprof expects."""

from __future__ import annotations

import gzip
import sys
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from kubeproxy.status import profiling
from kubeproxy.status.pprof import Frame, Profile, encode_pprof, format_folded
from kubeproxy.status.profiling import CpuSampler, sample_cpu


def burn(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_cpu_time_is_charged_to_the_busy_thread() -> None:
    """A burning thread shows with its function, a sleeping one does not."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=burn, args=(stop,)),
        threading.Thread(target=stop.wait, args=(30,)),
    ]
    for thread in threads:
        thread.start()
    start = time.process_time()
    try:
        # Ends by CPU time, not by waiting: as long as it takes to see some work.
        profile = sample_cpu(0.1, monotonic=lambda: time.process_time() - start)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    charged: Counter[str] = Counter()
    for stack, (_, cpu) in profile.samples.items():
        charged.update(dict.fromkeys({frame.function for frame in stack}, cpu))
    assert charged["burn"] > 10_000_000
    # On a busy machine the other thread may still be on its way to sleep.
    assert charged["Event.wait"] < charged["burn"] / 10


OUTER, INNER = Frame("outer", "a.py", 1), Frame("inner", "b.py", 2)


def test_folded_stacks_put_the_heaviest_first() -> None:
    profile = Profile((("cpu", "ns"),), {(OUTER,): (5,), (OUTER, INNER): (9,)})
    assert format_folded(profile) == (
        b"# cpu/ns\nouter (a.py:1);inner (b.py:2) 9\nouter (a.py:1) 5\n"
    )


def test_pprof_bytes() -> None:
    """The smallest profile, written out by hand from profile.proto."""
    profile = Profile((("cpu", "ns"),), {(OUTER, INNER): (300,)}, 7)
    expected = (
        b"\x0a\x04\x08\x01\x10\x02"  # sample_type: strings 1 and 2
        b"\x12\x08\x0a\x02\x01\x02\x12\x02\xac\x02"  # sample: inner first, value 300
        b"\x22\x08\x08\x01\x22\x04\x08\x01\x10\x02"  # location 1: function 1, line 2
        b"\x22\x08\x08\x02\x22\x04\x08\x02\x10\x01"  # location 2: function 2, line 1
        b"\x2a\x08\x08\x01\x10\x03\x18\x03\x20\x04"  # function 1: inner, b.py
        b"\x2a\x08\x08\x02\x10\x05\x18\x05\x20\x06"  # function 2: outer, a.py
        b"\x32\x00\x32\x03cpu\x32\x02ns\x32\x05inner\x32\x04b.py\x32\x05outer\x32\x04a.py"
        b"\x50\x07"  # duration
    )
    assert gzip.decompress(encode_pprof(profile)) == expected


def test_a_frame_between_two_lines_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line is None."""
    code = SimpleNamespace(co_qualname="between", co_filename="lines.py")
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)
    spent = iter([{7: 0}, {7: 1000}])
    monkeypatch.setattr(profiling, "_cpu_times", lambda: next(spent))
    monkeypatch.setattr(sys, "_current_frames", lambda: {7: frame})
    sampler = CpuSampler()
    sampler.sample()
    assert b"between" in gzip.decompress(encode_pprof(sampler.profile(1000)))
