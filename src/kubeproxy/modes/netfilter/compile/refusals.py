"""What a refused restore means: whose rule it was, or that the kernel is not as believed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.errors import Drifted, KernelError, Rejected
from kubeproxy.modes.base import Owner
from kubeproxy.modes.netfilter.compile.changes import RuleChange, by_type
from kubeproxy.modes.netfilter.items import Rules
from kubeproxy.modes.netfilter.rules.text import excerpt

# The tools use the same words for a chain that is gone and for an extension the kernel lacks, so
# these words suggest drift but do not prove it.
_MISSING_CHAIN_WORDS = ("No chain/target/match by that name", "does not exist", "load target")


class RestoreRefused(Rejected):
    """iptables-restore did not accept its input; nothing of the refused table took effect.

    `line` is the number of the refused input line, or 0 if the tool did not name it.
    """

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


class RuleRejected(Rejected):
    """The tool or the kernel refuses a rule; `owner` is whose it is, if the tool named the line."""

    def __init__(self, message: str, *, owner: Owner | None) -> None:
        super().__init__(message)
        self.owner = owner


def explain(
    refused: RestoreRefused, text: str, changes: Sequence[RuleChange], *, drift_suspected: bool
) -> KernelError:
    """The error to raise for a refused restore.

    A deletion or an insertion that fails means that a chain does not hold what we believed. This
    explanation is given once: when the refusal before this one was already blamed on drift
    (`drift_suspected`) and the kernel has been read since, the input itself is wrong.
    """
    line = _line(text, refused.line)
    if not drift_suspected and _suggests_drift(line, str(refused)):
        return Drifted(f'{refused}; refused was "{line}": the chain is not as we left it')
    owner = owner_of(line, changes)
    whose = "" if owner is None else f"{owner}: "
    # iptables-legacy hands a table to the kernel at COMMIT and blames that line for whatever the
    # kernel refuses, so the input around it shows nothing.
    if not line or line == "COMMIT":
        return RuleRejected(f"{whose}{refused}", owner=owner)
    around = excerpt(text, refused.line)
    return RuleRejected(f'{whose}{refused}; refused was "{line}", in\n{around}', owner=owner)


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _suggests_drift(line: str, message: str) -> bool:
    return line.startswith(("-D ", "-I ")) or any(
        words in message for words in _MISSING_CHAIN_WORDS
    )


def owner_of(line: str, changes: Sequence[RuleChange]) -> Owner | None:
    """Whose change an input line belongs to."""
    words = line.split(" ")
    chain = words[0][1:] if line.startswith(":") else (words[1] if len(words) > 1 else "")
    typed = by_type(changes)
    # Groups come first: a chain that a group wants may also be listed as no owner's (`batches`).
    for group in typed.groups:
        if group.new is not None and chain in group.new.chains:
            return group.owner
    for change in typed.chains:
        if change.item.name == chain:
            return change.owner
    for section in typed.sections:
        if section.item.chain == chain and section.new and _holds(section.new, words):
            return section.owner
    return None


def _holds(section: Rules, words: Sequence[str]) -> bool:
    """Is this command's rule (`-A CHAIN …` or `-I CHAIN N …`) one of the section's?"""
    start = 3 if words[0] == "-I" and words[2].isdigit() else 2
    spec = " ".join(words[start:])
    return any(line.endswith(f" {spec}") for line in section.lines())
