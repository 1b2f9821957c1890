"""A fake iptables that interprets restore input the way the real one does.

Stands at the seam `Tables`: tables, chains and rules in memory, one commit per table, atomic. It
refuses what the tool or kernel would refuse (a jump to nowhere, deleting a rule that is not there
or a chain in use), naming the input line. `save` prints addresses and marks as the tool prints
them, so what is read never has the spelling that was written.
"""

from __future__ import annotations

import re

from kubeproxy.modes.netfilter.compile.refusals import RestoreRefused
from kubeproxy.modes.netfilter.rules.canonical import canonical_rule
from kubeproxy.modes.netfilter.rules.text import TableText, format_restore

BUILT_IN = {
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}
_TARGET = re.compile(r"-[jg] (\S+)")


class FakeXtables:
    """One family's tables."""

    def __init__(self, *, is_nft: bool = True) -> None:
        self.is_nft = is_nft
        self.chains: dict[str, dict[str, list[str]]] = {
            table: {chain: [] for chain in chains} for table, chains in BUILT_IN.items()
        }
        self.restores: list[str] = []
        self.refuse_containing = ""
        """Rules with these words are refused, as a kernel without some module would."""

    async def is_empty(self, table: str) -> bool:
        return False  # as iptables-nft, which has to be asked

    async def save(self, table: str) -> str:
        chains = self.chains[table]
        built_in = BUILT_IN[table]
        policies = {chain: "ACCEPT" if chain in built_in else "-" for chain in chains}
        rules = {
            chain: "".join(f"-A {chain} {as_saved(spec)}\n" for spec in specs)
            for chain, specs in chains.items()
            if specs
        }
        return format_restore([TableText(table, policies, rules)])

    async def restore(self, text: str) -> None:
        self.restores.append(text)
        if "\n-E " in text:
            # In nf_tables names mean, until the end of a commit, what they meant at its beginning.
            assert not re.search("^(:|-[^E])", text, re.MULTILINE), "a renamed chain is used"
        table, working = "", {}
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("*"):
                table = line[1:]
                working = {name: list(rules) for name, rules in self.chains[table].items()}
            elif line == "COMMIT":
                self._check(working, number)
                self.chains[table] = working
            else:
                self._command(working, line, number)

    def meaning(self) -> dict[tuple[str, str], list[str]]:
        """What the tables mean, whatever the spelling."""
        return {
            (table, chain): [canonical_rule(f"-A {chain} {spec}") for spec in specs]
            for table, chains in self.chains.items()
            for chain, specs in chains.items()
        }

    def _command(self, chains: dict[str, list[str]], line: str, number: int) -> None:
        if line.startswith(":"):
            chains[line[1:].split(" ", 1)[0]] = []
            return
        operation, chain, *rest = line.split(" ", 2)
        spec = rest[0] if rest else ""
        if chain not in chains:
            _refuse(number, "No chain/target/match by that name.")
        if self.refuse_containing and self.refuse_containing in spec and operation != "-D":
            _refuse(number, "RULE_APPEND failed (No such file or directory)")
        _OPERATIONS[operation](chains, chain, spec, number)

    def _check(self, chains: dict[str, list[str]], number: int) -> None:
        """Every jump must lead to a chain that exists, or to a target (all upper case, no dash
        prefix of ours)."""
        for name, specs in chains.items():
            for spec in specs:
                target = _TARGET.search(spec)
                if target and target[1].startswith("KUBE-") and target[1] not in chains:
                    _refuse(number, f"Chain '{target[1]}' does not exist (from {name})")


def _refuse(number: int, why: str) -> None:
    raise RestoreRefused(f"iptables-restore: line {number} failed: {why}", line=number)


def _append(chains: dict[str, list[str]], chain: str, spec: str, number: int) -> None:
    chains[chain].append(spec)


def _insert(chains: dict[str, list[str]], chain: str, spec: str, number: int) -> None:
    first, _, rest = spec.partition(" ")
    place, spec = (int(first), rest) if first.isdigit() else (1, spec)
    if place > len(chains[chain]) + 1:
        _refuse(number, "Index of insertion too big.")
    chains[chain].insert(place - 1, spec)


def _delete(chains: dict[str, list[str]], chain: str, spec: str, number: int) -> None:
    wanted = canonical_rule(f"-A {chain} {spec}")
    for index, held in enumerate(chains[chain]):
        if canonical_rule(f"-A {chain} {held}") == wanted:
            del chains[chain][index]
            return
    _refuse(number, "Bad rule (does a matching rule exist in that chain?).")


def _delete_chain(chains: dict[str, list[str]], chain: str, spec: str, number: int) -> None:
    pointing = [name for name, specs in chains.items() if _points_to(specs, chain)]
    if chains[chain] or pointing:
        _refuse(number, f"CHAIN_DEL failed (Device or resource busy): chain {chain}")
    del chains[chain]


def _points_to(specs: list[str], chain: str) -> bool:
    return any(f"-j {chain}" == spec[-len(chain) - 3 :] for spec in specs)


def _rename(chains: dict[str, list[str]], chain: str, spec: str, number: int) -> None:
    """Jumps follow: the kernel's lead to the chain, not to its name."""
    if spec in chains:
        _refuse(number, "File exists.")
    for name, specs in chains.items():
        chains[name] = [
            f"{each.rpartition('-j ')[0]}-j {spec}" if _points_to([each], chain) else each
            for each in specs
        ]
    chains[spec] = chains.pop(chain)


_OPERATIONS = {
    "-A": _append,
    "-I": _insert,
    "-D": _delete,
    "-X": _delete_chain,
    "-E": _rename,
}

_HOST = re.compile(r"(?<= -[sd] )([0-9a-f.:]+)(?= |$)")
_PADDED = re.compile(r"0x0+(?=[1-9a-f])")
_FRONT = re.compile(r"(?:! )?-[sdip] \S+ ?")


def as_saved(spec: str) -> str:
    """A rule with addresses, interface and protocol first and complete, as iptables-save has it."""
    front = "".join(f"{found.strip()} " for found in _FRONT.findall(f"{spec} "))
    rest = _FRONT.sub("", f"{spec} ").strip()
    moved = _PADDED.sub("0x", f" {front}{rest}")
    return _HOST.sub(_with_length, moved).strip()


def _with_length(found: re.Match[str]) -> str:
    return f"{found[1]}/128" if ":" in found[1] else f"{found[1]}/32"
