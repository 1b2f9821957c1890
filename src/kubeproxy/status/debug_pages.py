"""`/debug/pprof/…` and `/debug/flags/v`, served only when profiling is enabled.

`go tool pprof` can read the profiles, and `?debug=1` gives text instead. Profiles of what Python
does not record (mutexes, blocking) are empty, and an execution trace is refused. Measuring is in
`profiling`, the formats in `pprof`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from html import escape

from kubeproxy.go.quoting import quote
from kubeproxy.status import profiling
from kubeproxy.status.http import HTML, NOSNIFF, TEXT, Request, Response, not_found, text
from kubeproxy.status.pprof import Profile, encode_pprof, format_folded

PROFILES = {
    "allocs": "memory allocated while tracing and still held (?seconds=, default 10)",
    "block": "always empty: Python does not record it",
    "cmdline": "the command line of this program",
    "goroutine": "stacks of all threads and tasks",
    "heap": "the same as allocs",
    "mutex": "always empty: Python does not record it",
    "profile": "CPU profile (?seconds=, default 30)",
    "symbol": "always says that symbols are in the profiles",
    "threadcreate": "stacks of all threads and tasks",
}
CPU_SECONDS, HEAP_SECONDS, MAX_SECONDS = 30.0, 10.0, 600.0


class DebugPages:
    """The debug paths of one program."""

    def __init__(
        self,
        *,
        command_line: Sequence[str],
        set_verbosity: Callable[[int], None],
        sample_cpu: Callable[[float], Profile] = profiling.sample_cpu,
        trace_heap: Callable[[float], Awaitable[Profile]] = profiling.trace_heap,
    ) -> None:
        self._command_line = command_line
        self._set_verbosity = set_verbosity
        self._sample_cpu = sample_cpu
        self._trace_heap = trace_heap
        self._is_sampling = False
        self._is_tracing = False

    async def handle(self, request: Request) -> Response:
        """Serve every path below `/debug/`."""
        path = request.path
        if path == "/debug/pprof":
            body = b'<a href="/debug/pprof/">Found</a>.\n\n'
            return Response(body, 302, (HTML, ("Location", "/debug/pprof/")))
        if path.startswith("/debug/pprof/"):
            return await self._profile(path.removeprefix("/debug/pprof/"), request)
        if path in ("/debug/flags", "/debug/flags/"):
            return Response(_flag_index(), 200, (HTML,))
        return self._flag(request) if path == "/debug/flags/v" else not_found()

    async def _profile(self, name: str, request: Request) -> Response:
        match name:
            case "":
                return Response(_index(), 200, (HTML, NOSNIFF))
            case "cmdline":
                return text("\0".join(self._command_line))
            case "symbol":
                return text("num_symbols: 0\n")
            case "trace":
                return text("Python has no execution trace; try profile or goroutine\n", 501)
            case "profile":
                return await self._cpu(request)
            case "heap" | "allocs":
                return await self._heap(name, request)
            case "goroutine" | "threadcreate":
                if _debug(request):
                    return Response(profiling.format_stacks(), 200, (TEXT, NOSNIFF))
                return _rendered(name, profiling.stacks(), request)
            case "block" | "mutex":
                empty = Profile((("contentions", "count"), ("delay", "nanoseconds")), {})
                return _rendered(name, empty, request)
        return text(f"Unknown profile: {name}\n", 404)

    async def _cpu(self, request: Request) -> Response:
        if self._is_sampling:
            return text("Could not enable CPU profiling: cpu profiling already in use\n", 500)
        self._is_sampling = True
        try:
            seconds = _seconds(request, CPU_SECONDS)
            profile = await asyncio.to_thread(self._sample_cpu, seconds)
        finally:
            self._is_sampling = False
        return _rendered("profile", profile, request)

    async def _heap(self, name: str, request: Request) -> Response:
        # A snapshot stops everything else; with tracing on, many could be asked for at once.
        if self._is_tracing:
            return text("Could not enable heap profiling: heap profiling already in use\n", 500)
        self._is_tracing = True
        try:
            profile = await self._trace_heap(_seconds(request, HEAP_SECONDS))
        finally:
            self._is_tracing = False
        return _rendered(name, profile, request)

    def _flag(self, request: Request) -> Response:
        if request.method != "PUT":
            return text("unsupported http method\n", 406)
        value = request.body.decode(errors="replace")
        if not re.fullmatch(r"[+-]?[0-9]{1,9}", value):
            reason = f"strconv.ParseInt: parsing {quote(value)}: invalid syntax"
            return text(f"failed set klog.logging.verbosity {value}: {reason}\n", 400)
        self._set_verbosity(int(value))
        return text(f"successfully set klog.logging.verbosity to {value}\n")


def _seconds(request: Request, default: float) -> float:
    """Return the length asked for, or the default if that is no positive number."""
    given = request.query.get("seconds", ("",))[0]
    wanted = float(given) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", given) else 0.0
    return min(wanted or default, MAX_SECONDS)


def _debug(request: Request) -> bool:
    return request.query.get("debug", ("0",))[0] not in ("", "0")


def _rendered(name: str, profile: Profile, request: Request) -> Response:
    if _debug(request):
        return Response(format_folded(profile), 200, (TEXT, NOSNIFF))
    headers = (
        ("Content-Type", "application/octet-stream"),
        ("Content-Disposition", f'attachment; filename="{name}"'),
        NOSNIFF,
    )
    return Response(encode_pprof(profile), 200, headers)


def _index() -> bytes:
    rows = "".join(
        f"<tr><td><a href='{name}?debug=1'>{name}</a></td><td>{escape(about)}</td></tr>\n"
        for name, about in PROFILES.items()
    )
    title = "<html><head><title>/debug/pprof/</title></head>"
    return f"{title}<body>/debug/pprof/<table>\n{rows}</table></body></html>\n".encode()


def _flag_index() -> bytes:
    return b"<html><head><title>/debug/flags/</title></head><body>/debug/flags/<br>" + (
        b"<a href='/debug/flags/v'>v</a><br></body></html>\n"
    )
