"""Profiles of this process: CPU by sampling, memory by tracing, stacks of threads and tasks.

Nothing runs until a profile is requested. CPU samples are taken in a thread of their own and charge
each thread's CPU time to the stack it is found in, so sleeping threads weigh nothing. Formats are
in `pprof`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType

from kubeproxy.status.pprof import Frame, Profile, Stack

SAMPLE_SECONDS = 0.01
MAX_DEPTH = 64
CPU_KINDS = (("samples", "count"), ("cpu", "nanoseconds"))
HEAP_KINDS = (("inuse_objects", "count"), ("inuse_space", "bytes"))
STACK_KINDS = (("goroutine", "count"),)


class CpuSampler:
    """Charges CPU time since the last sample to the stack each thread is in."""

    def __init__(self) -> None:
        self._samples: dict[Stack, list[int]] = {}
        self._charged = _cpu_times()

    def sample(self) -> None:
        """Charge the CPU time since the last call. The calling thread is left out."""
        now = _cpu_times()
        own = threading.get_ident()
        for thread, frame in sys._current_frames().items():
            spent = now.get(thread, 0) - self._charged.get(thread, 0)
            if spent > 0 and thread != own:
                held = self._samples.setdefault(_stack(frame), [0, 0])
                held[0] += 1
                held[1] += spent
        self._charged = now

    def profile(self, duration_ns: int) -> Profile:
        samples = {stack: (count, spent) for stack, (count, spent) in self._samples.items()}
        return Profile(CPU_KINDS, samples, duration_ns)


def sample_cpu(
    seconds: float,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Profile:
    """Take a CPU profile of all other threads. This blocks, so call it in a thread."""
    sampler, start = CpuSampler(), monotonic()
    while monotonic() - start < seconds:
        pause(SAMPLE_SECONDS)
        sampler.sample()
    return sampler.profile(int(seconds * 1e9))


def _cpu_times() -> dict[int, int]:
    """Return CPU nanoseconds per thread. A thread that ends meanwhile is left out."""
    times = {}
    for thread in threading.enumerate():
        try:
            clock = time.pthread_getcpuclockid(thread.ident or 0)
            times[thread.ident or 0] = time.clock_gettime_ns(clock)
        except OSError:
            continue
    return times


def _stack(frame: FrameType | None) -> Stack:
    frames: list[Frame] = []
    while frame is not None and len(frames) < MAX_DEPTH:
        code = frame.f_code
        frames.append(Frame(code.co_qualname, code.co_filename, _line(frame)))
        frame = frame.f_back
    return tuple(reversed(frames))


def _line(frame: FrameType) -> int:
    # Between two lines it is None, against what its type says.
    return frame.f_lineno or 0


async def trace_heap(seconds: float) -> Profile:
    """Profile memory allocated meanwhile and still held.

    If tracing has been on since the start (PYTHONTRACEMALLOC), profile all memory at once.
    """
    if tracemalloc.is_tracing():
        return _heap_profile(tracemalloc.take_snapshot())
    tracemalloc.start(16)
    try:
        await asyncio.sleep(seconds)
        return _heap_profile(tracemalloc.take_snapshot())
    finally:
        tracemalloc.stop()


def _heap_profile(snapshot: tracemalloc.Snapshot) -> Profile:
    samples = {}
    for held in snapshot.statistics("traceback"):
        # tracemalloc records files and lines, not functions.
        stack = tuple(Frame(f.filename, f.filename, f.lineno) for f in held.traceback)
        samples[stack] = (held.count, held.size)
    return Profile(HEAP_KINDS, samples)


def stacks() -> Profile:
    """Profile where every thread and every task stands now."""
    found: dict[Stack, int] = {}
    frames = [_stack(frame) for frame in sys._current_frames().values()]
    tasks = [_task_stack(task) for task in asyncio.all_tasks()]
    for stack in frames + tasks:
        found[stack] = found.get(stack, 0) + 1
    return Profile(STACK_KINDS, {stack: (count,) for stack, count in found.items()})


def _task_stack(task: asyncio.Task[object]) -> Stack:
    named = Frame(f"task {task.get_name()}", "", 0)
    inner = (Frame(f.f_code.co_qualname, f.f_code.co_filename, _line(f)) for f in task.get_stack())
    return (named, *inner)


def format_stacks() -> bytes:
    """Format the same for people, one paragraph per thread and task."""
    names = {t.ident: t.name for t in threading.enumerate()}
    parts = [
        f"thread {names.get(thread, thread)}:\n{_paragraph(_stack(frame))}"
        for thread, frame in sys._current_frames().items()
    ]
    for task in sorted(asyncio.all_tasks(), key=lambda t: t.get_name()):
        stack = _task_stack(task)
        parts.append(f"{stack[0].function}:\n{_paragraph(stack[1:])}")
    return "\n".join(parts).encode()


def _paragraph(stack: Stack) -> str:
    return "".join(f"\t{f.function}\n\t\t{f.file}:{f.line}\n" for f in reversed(stack))
