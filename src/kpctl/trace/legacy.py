"""Marks packets with the TRACE target of iptables-legacy, whose reports are log messages.

For this two rules are added to the table `raw`, and the kernel's log is led to netlink. A second
process puts both back when this one ends, also by SIGKILL. Should that one be killed as well, the
rules cease to match after the time limit.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from kpctl.trace.marking import (
    END_OF_CHAIN,
    QUIET_SECONDS,
    Match,
    Passed,
    rule_line,
    saved_table,
)
from kubeproxy.errors import KernelError
from kubeproxy.kernel.exec import run_tool
from kubeproxy.kernel.nflog.table import NetfilterLog
from kubeproxy.kernel.nflog.wire import LoggedPacket
from kubeproxy.kernel.nftables import traces
from kubeproxy.kernel.sysctl import ensure_sysctl, read_sysctl
from kubeproxy.modes.netfilter.rules.text import TableText
from kubeproxy.modes.netfilter.sinks.tools import Programs

_COMMENT = "kpctl-trace"
_CHAINS = ("PREROUTING", "OUTPUT")
_LOG_GROUP = 0
"""Where TRACE logs."""
_LOCK_SECONDS = "10"


class LegacyMarking:
    """Through the TRACE target, whose reports are log messages."""

    def __init__(self, match: Match, programs: Programs, timeout_seconds: float) -> None:
        self._programs = programs
        until = datetime.now(UTC) + timedelta(seconds=timeout_seconds + 60)
        self._rule = trace_rule(match, until)
        self._logger = f"net/netfilter/nf_log/{match.family.af}"
        self._log: NetfilterLog | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    async def open(self) -> None:
        self._log = NetfilterLog(_LOG_GROUP)
        self._keeper = start_keeper(self._undoing())
        ensure_sysctl(self._logger, "nfnetlink_log")
        for chain in _CHAINS:
            await self._run("-I", chain)

    def _undoing(self) -> str:
        """The shell commands that leave everything as it is now. A rule may not be there yet."""
        former = f"printf %s {shlex.quote(read_sysctl(self._logger))} > /proc/sys/{self._logger}"
        rules = (f"{shlex.join(self._argv('-D', chain))} 2>/dev/null" for chain in _CHAINS)
        return "; ".join((*rules, former))

    async def collect(self, timeout_seconds: float) -> Sequence[Passed]:
        logged: list[LoggedPacket] = []
        wait = timeout_seconds
        while self._log and (found := await asyncio.to_thread(self._log.receive, wait)):
            logged += [packet for packet in found if packet.prefix.startswith(_TRACE)]
            wait = QUIET_SECONDS if logged else wait
        return await self._passed(_first_packet(logged))

    async def close(self) -> None:
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.communicate)  # it ends when its input does
            self._keeper = None
        if self._log is not None:
            self._log.close()

    def _argv(self, verb: str, chain: str) -> list[str]:
        place = ("-t", "raw", verb, chain)
        return [self._programs.command, "-w", _LOCK_SECONDS, *place, *self._rule]

    async def _run(self, verb: str, chain: str) -> None:
        argv = self._argv(verb, chain)
        done = await run_tool(argv)
        if not done.is_success:
            raise KernelError(f"{' '.join(argv)}: {done.output.strip()}")

    async def _passed(self, logged: Iterable[LoggedPacket]) -> list[Passed]:
        saved: dict[str, TableText | None] = {}
        found = []
        for packet in logged:
            table, chain, kind, number = parse_prefix(packet.prefix)
            if table not in saved:
                saved[table] = await saved_table(self._programs, table)
            held = saved[table]
            rule = rule_line(held, chain, number) if held and kind == "rule" else END_OF_CHAIN
            to = _destination(packet.payload)
            found.append(Passed(table, chain, rule, _target(rule), to))
        return [passed for passed in found if passed.table != "raw"]


def start_keeper(undoing: str) -> subprocess.Popen[bytes]:
    """Start a process that runs these shell commands as soon as this one ends, however that is.

    Its input closes then. A session of its own keeps it from signals meant for this process.
    """
    return subprocess.Popen(
        ["sh", "-c", f"cat > /dev/null; {undoing}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


_TRACE = "TRACE: "


def trace_rule(match: Match, until: datetime) -> tuple[str, ...]:
    """The rule, without its chain: `-p tcp … -j TRACE`."""
    origin = ("-s", match.source) if match.source else ()
    protocol = match.protocol.lower_name
    stop = until.strftime("%Y-%m-%dT%H:%M:%S")
    return (
        *origin,
        *("-d", match.destination, "-p", protocol, "--dport", str(match.port)),
        *("-m", "time", "--datestop", stop),
        *("-m", "comment", "--comment", _COMMENT, "-j", "TRACE"),
    )


def parse_prefix(prefix: str) -> tuple[str, str, str, int]:
    """Table, chain, kind (rule, return, policy) and number out of `TRACE: nat:OUTPUT:rule:1 `."""
    table, _, rest = prefix.removeprefix(_TRACE).strip().partition(":")
    chain, kind, number = (*rest.rsplit(":", 2), "", "", "")[:3]
    return table, chain, kind, int(number) if number.isdigit() else 0


def _first_packet(logged: Sequence[LoggedPacket]) -> Iterator[LoggedPacket]:
    """Its reports: another packet begins where the first table is met again."""
    begun = False
    for packet in logged:
        is_start = packet.prefix.startswith(f"{_TRACE}raw:")
        if is_start and begun:
            return
        begun = begun or not is_start
        yield packet


def _destination(payload: bytes) -> tuple[str, int] | None:
    if not payload:
        return None
    start = 40 if payload[0] >> 4 == 6 else (payload[0] & 0xF) * 4
    return traces.destination_of(payload[:start], payload[start:])


def _target(rule: str) -> str:
    target = rule.partition("-j ")[2].partition(" ")[0]
    return {"DROP": "drop", "REJECT": "drop", "ACCEPT": "accept"}.get(target, "")
