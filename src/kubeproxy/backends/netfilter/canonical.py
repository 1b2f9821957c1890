"""One spelling for rules that mean the same.

iptables-save prints a rule otherwise than it was given: addresses first and with a prefix length,
marks without padding, probabilities rounded to 31 bits, defaults spelled out. Comparing what was
written with what is read therefore needs a common form. `canonical_rule` brings both spellings to
it; a spelling it does not know merely compares as different, and the rules are written again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_PROBABILITY_BITS = 1 << 31
_FRONT = {"-s": 0, "-d": 1, "-i": 2, "-o": 3, "-p": 4}
_DEFAULT_REJECTS = frozenset({"icmp-port-unreachable", "icmp6-port-unreachable"})
_RECENT_DEFAULTS = frozenset({"--rsource"})
_SEPARATOR = "\x1f"


def canonical_rule(line: str) -> str:
    """The common form of a rule line: words joined by a separator no rule contains."""
    words = _split(line)
    front = [""] * len(_FRONT)
    rest: list[str] = []
    position, end, negation = 0, len(words), ""
    while position < end:
        word = words[position]
        slot = _FRONT.get(word)
        if slot is not None:
            front[slot] = f"{negation}{word} {_with_prefix(words[position + 1])}"
            negation = ""
            position += 2
            continue
        if word == "!":
            negation = "! "
            position += 1
            continue
        position = _take(words, position, negation, rest)
        negation = ""
    return _SEPARATOR.join((*rest[:2], *front, *rest[2:]))


def _split(line: str) -> list[str]:
    """Words, a quoted text being one."""
    if '"' not in line:
        return line.split()
    words = [plain or quoted for quoted, plain in _WORD.findall(line)]
    return [_ESCAPED.sub(r"\1", word) for word in words] if "\\" in line else words


def _with_prefix(address: str) -> str:
    """Hosts get the prefix length that iptables prints; names (interfaces, protocols) stay."""
    if "/" in address:
        return address
    if ":" in address:
        return f"{address}/128"
    return f"{address}/32" if address.count(".") == 3 and address[-1].isdigit() else address


def _take(words: list[str], position: int, negation: str, rest: list[str]) -> int:
    """Append one word, or one option with its value in common form; where to go on."""
    word = words[position]
    if word == "-m" and words[position + 1] == "recent":
        return _take_recent(words, position + 2, rest)
    common = _OPTIONS.get(word)
    if common is None:
        rest.append(negation + word)
        return position + 1
    rest.extend(common(negation + word, words[position + 1]))
    return position + 2


def _take_recent(words: list[str], position: int, rest: list[str]) -> int:
    """The options of `-m recent` are printed in another order, with the defaults spelled out."""
    options: list[str] = []
    while position < len(words) and words[position] not in ("-m", "-j", *_FRONT):
        word = words[position]
        position += 1
        if word in ("--name", "--seconds", "--mask"):
            if word != "--mask":
                options.append(f"{word} {words[position]}")
            position += 1
        elif word not in _RECENT_DEFAULTS:
            options.append(word)
    rest.append("-m recent")
    rest.extend(sorted(options))
    return position


def _mark(word: str, value: str) -> tuple[str, ...]:
    return (word, "/".join(hex(int(part, 0)) for part in value.split("/")))


def _or_mark(_word: str, value: str) -> tuple[str, ...]:
    return _mark("--set-xmark", f"{value}/{value}")


def _xor_mark(_word: str, value: str) -> tuple[str, ...]:
    return _mark("--set-xmark", f"{value}/0")


def _probability(word: str, value: str) -> tuple[str, ...]:
    return (word, str(round(float(value) * _PROBABILITY_BITS)))


def _reject_with(word: str, value: str) -> tuple[str, ...]:
    return () if value in _DEFAULT_REJECTS else (word, value)


_OPTIONS: dict[str, Callable[[str, str], tuple[str, ...]]] = {
    "--mark": _mark,
    "--set-xmark": _mark,
    "--or-mark": _or_mark,
    "--xor-mark": _xor_mark,
    "--probability": _probability,
    "--reject-with": _reject_with,
}
