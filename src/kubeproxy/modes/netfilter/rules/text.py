"""The text that iptables-save prints and iptables-restore reads.

`parse_save` and `format_restore` are a pair: what one writes the other reads. Rules stay lines of
text, grouped by chain: a full read has 160,000 of them, and only a few are ever taken apart. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

USER_CHAIN = "-"
"""What stands for the policy in the chain line of a chain that is not built in."""


class TableText(Struct, frozen=True):
    """One table: chains with their policies, and each chain's rules as `-A` lines."""

    name: str
    policies: Mapping[str, str] = {}
    rules: Mapping[str, str] = {}

    def lines(self, chain: str) -> list[str]:
        # Not splitlines: a comment of another program may hold what that takes for a line's end.
        text = self.rules.get(chain, "").removesuffix("\n")
        return text.split("\n") if text else []


def chain_line(chain: str, policy: str = USER_CHAIN) -> str:
    """The line that declares a chain and, in a restore with `--noflush`, also empties it."""
    return f":{chain} {policy} [0:0]\n"


def format_restore(tables: Iterable[TableText]) -> str:
    """Restore input that brings about exactly these chains with these rules."""
    parts: list[str] = []
    for table in tables:
        parts.append(f"*{table.name}\n")
        parts += [chain_line(chain, policy) for chain, policy in table.policies.items()]
        parts += table.rules.values()
        parts.append("COMMIT\n")
    return "".join(parts)


_RULES_OF_CHAIN = re.compile(r"-A ([^ \n]+)(?: [^\n]*)?\n(?:-A \1(?: [^\n]*)?\n)*+")
"""Rules of one chain, which stand together."""


def parse_save(text: str) -> tuple[TableText, ...]:
    """The tables of an iptables-save; comments and counters are dropped.

    The rules of a chain are cut out as one piece. 160,000 lines that exist at once and are freed
    again would leave holes in the memory, between what happens to stay.
    """
    tables: list[TableText] = []
    policies: dict[str, str] = {}
    rules: dict[str, str] = {}
    name, place = "", 0
    while place < len(text):
        if (found := _RULES_OF_CHAIN.match(text, place)) is not None:
            rules[found[1]] = rules.get(found[1], "") + found[0]
            place = found.end()
            continue
        end = text.find("\n", place)
        line = text[place:] if end < 0 else text[place:end]
        place += len(line) + 1
        if line.startswith(":"):
            chain, policy, _ = line[1:].split(" ", 2)
            policies[chain] = policy
        elif line.startswith("*"):
            name, policies, rules = line[1:], {}, {}
        elif line == "COMMIT":
            tables.append(TableText(name, policies, rules))
    return tuple(tables)


_FAILED_LINE = (
    re.compile(r"line ([1-9][0-9]*) failed"),
    re.compile(r"Error occurred at line: ([1-9][0-9]*)"),
    re.compile(r"line ([1-9][0-9]*): [A-Z_]+ failed"),
)
"""iptables-legacy names the line of a syntax error in two ways, iptables-nft has a third for what
the kernel refuses at commit."""

_NOISE = re.compile(r"^Try `.*' for more information\.$|^Error occurred at line: \d+$")


def failed_line(output: str) -> int:
    """The number (from 1) of the input line a restore refused, or 0 if the tool names none."""
    for pattern in _FAILED_LINE:
        found = pattern.search(output)
        if found:
            return int(found[1])
    return 0


def error_summary(output: str) -> str:
    """A tool's error output in one line, without its usage hint."""
    lines = (line.strip() for line in output.splitlines())
    return " ".join(line for line in lines if line and not _NOISE.match(line))


def excerpt(text: str, line: int, *, around: int = 3) -> str:
    """The input around a line, numbered, for the log."""
    lines = text.splitlines()
    first = max(line - 1 - around, 0)
    shown = lines[first : line + around]
    return "\n".join(f"{number}: {words}" for number, words in enumerate(shown, first + 1))
