"""What a refused restore means: whose rule it was, or that the kernel is not as believed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kubeproxy.errors import Drifted, KernelError, Rejected
from kubeproxy.modes.base import Change, Owner
from kubeproxy.modes.netfilter.items import Chain, GroupRules, Rules, Section
from kubeproxy.modes.netfilter.rules.text import excerpt

_MISSING_CHAIN_WORDS = ("No chain/target/match by that name", "does not exist", "load target")


class RestoreRefused(Rejected):
    """iptables-restore did not accept its input; nothing of the refused table took effect.

    `line` is the number of the refused input line, or 0 if the tool did not say.
    """

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.line = line


class RuleRejected(Rejected):
    """A rule the tool or the kernel does not take; `owner` is whose it is, if the tool told."""

    def __init__(self, message: str, *, owner: Owner | None) -> None:
        super().__init__(message)
        self.owner = owner


def explain(
    refused: RestoreRefused, text: str, changes: Sequence[Change], was_in_doubt: bool
) -> KernelError:
    """The error to raise for a refused restore.

    A deletion or an insertion that fails means that a chain does not hold what we believed. That
    excuse holds once: refused again right after reading the kernel, the input itself is wrong.
    """
    line = _line(text, refused.line)
    if not was_in_doubt and _is_about_belief(line, str(refused)):
        return Drifted(f'{refused}; refused was "{line}": the chain is not as we left it')
    owner = owner_of(line, changes)
    whose = "" if owner is None else f"{owner}: "
    if not line or line == "COMMIT":
        return RuleRejected(f"{whose}{refused}", owner=owner)
    around = excerpt(text, refused.line)
    return RuleRejected(f'{whose}{refused}; refused was "{line}", in\n{around}', owner=owner)


def is_doubt(error: KernelError) -> bool:
    return isinstance(error, Drifted)


def _line(text: str, number: int) -> str:
    lines = text.splitlines()
    return lines[number - 1] if 0 < number <= len(lines) else ""


def _is_about_belief(line: str, said: str) -> bool:
    return line.startswith(("-D ", "-I ")) or any(words in said for words in _MISSING_CHAIN_WORDS)


def owner_of(line: str, changes: Sequence[Change]) -> Owner | None:
    """Whose change an input line belongs to."""
    words = line.split(" ")
    chain = words[0][1:] if line.startswith(":") else (words[1] if len(words) > 1 else "")
    for change in changes:
        item = change.item
        if isinstance(item, Chain) and item.name == chain:
            return change.owner
        if isinstance(change.new, GroupRules) and chain in change.new.chains:
            return change.owner
        if isinstance(item, Section) and item.chain == chain and _holds(change.new, words):
            return change.owner
    return None


def _holds(value: object, words: Sequence[str]) -> bool:
    """Is this command's rule (`-A CHAIN …` or `-I CHAIN N …`) one of the section's?"""
    start = 3 if words[0] == "-I" and words[2].isdigit() else 2
    spec = " ".join(words[start:])
    return isinstance(value, Rules) and any(line.endswith(f" {spec}") for line in value.lines())
