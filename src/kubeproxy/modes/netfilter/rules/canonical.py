"""One spelling for rules that mean the same.

iptables-save prints a rule otherwise than it was given: addresses first and with a prefix length,
marks without padding, probabilities rounded to 31 bits, defaults spelled out. Comparing what was
written with what is read therefore needs a common form. `canonical_rule` brings both spellings to
it. A spelling it does not know compares as different, and the rules are written again: correct,
only slower. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_PROBABILITY_BITS = 1 << 31
_FRONT = {"-s": 0, "-d": 1, "-i": 2, "-o": 3, "-p": 4}
"""iptables-save prints these first and in this order, wherever they were given."""
_DEFAULT_REJECTS = frozenset({"icmp-port-unreachable", "icmp6-port-unreachable"})
_SPECIAL = ("-", "!")
_PLAIN = frozenset({"-A", "-j", "--mode", "--to-destination"})
"""Options never negated and printed as written; listed because they are the most frequent."""
_SEPARATOR = "\x1f"


def canonical_rule(line: str) -> str:
    """The common form of a rule line: words joined by a separator no rule contains.

    Runs over every rule in the kernel when that is compared with what is wanted, so plain words,
    which are most, take the shortest way. A line that is no rule of a known form, such as half a
    rule, is its own common form.
    """
    words = _split(line)
    try:
        return _canonical(words)
    except (StopIteration, ValueError):
        return _SEPARATOR.join(words)


def _canonical(split: list[str]) -> str:
    front = ["", "", "", "", ""]
    rest: list[str] = []
    negation = ""
    words = iter(split)
    for word in words:
        if word in _PLAIN or word[:1] not in _SPECIAL:
            rest.append(word)
        elif word in _FRONT:
            front[_FRONT[word]] = f"{negation}{word} {_with_prefix(next(words))}"
            negation = ""
        elif word == "!":
            negation = "! "
        else:
            rest.extend(_OPTIONS.get(word, _unchanged)(negation + word, words))
            negation = ""
    return _SEPARATOR.join((*rest[:2], *front, *rest[2:]))


def _split(line: str) -> list[str]:
    """Words, a quoted text being one."""
    if '"' not in line:
        return line.split()
    if "\\" in line:
        words = (plain or quoted for quoted, plain in _WORD.findall(line))
        return [_ESCAPED.sub(r"\1", word) for word in words]
    found: list[str] = []
    for number, part in enumerate(line.split('"')):
        if number % 2:
            found.append(part)
        else:
            found += part.split()
    return found


def _with_prefix(address: str) -> str:
    """Hosts get the prefix length that iptables prints; names (interfaces, protocols) stay."""
    if "/" in address:
        return address
    if ":" in address:
        return f"{address}/128"
    return f"{address}/32" if address.count(".") == 3 and address[-1].isdigit() else address


def _unchanged(word: str, _words: Iterator[str]) -> tuple[str, ...]:
    """An option that is printed as it was written; its value follows as a plain word."""
    return (word,)


def _comment(word: str, words: Iterator[str]) -> tuple[str, ...]:
    """A comment with its value, which may look like an option."""
    return (word, next(words))


def _match(word: str, words: Iterator[str]) -> tuple[str, ...]:
    name = next(words)
    return _recent(words) if name == "recent" else (word, name)


_RECENT_WITH_VALUE = frozenset({"--name", "--seconds"})
_RECENT_FLAGS = frozenset({"--rcheck", "--set", "--reap", "--update", "--remove"})


def _recent(words: Iterator[str]) -> tuple[str, ...]:
    """`-m recent` is printed with its options in another order and the defaults spelled out.

    Its options are taken up to the first word that is not one of them; that word, a match or the
    target, is left as it is.
    """
    options: list[str] = []
    for word in words:
        if word in _RECENT_WITH_VALUE:
            options.append(f"{word} {next(words)}")
        elif word in _RECENT_FLAGS:
            options.append(word)
        elif word == "--mask":
            next(words)
        elif word != "--rsource":
            return ("-m recent", *sorted(options), word)
    return ("-m recent", *sorted(options))


def _hex(value: str) -> str:
    return "/".join(hex(int(part, 0)) for part in value.split("/"))


def _mark(word: str, words: Iterator[str]) -> tuple[str, ...]:
    return (word, _hex(next(words)))


def _or_mark(_word: str, words: Iterator[str]) -> tuple[str, ...]:
    value = next(words)
    return ("--set-xmark", _hex(f"{value}/{value}"))


def _xor_mark(_word: str, words: Iterator[str]) -> tuple[str, ...]:
    return ("--set-xmark", _hex(f"{next(words)}/0"))


def _probability(word: str, words: Iterator[str]) -> tuple[str, ...]:
    return (word, str(round(float(next(words)) * _PROBABILITY_BITS)))


def _reject_with(word: str, words: Iterator[str]) -> tuple[str, ...]:
    value = next(words)
    return () if value in _DEFAULT_REJECTS else (word, value)


_OPTIONS: dict[str, Callable[[str, Iterator[str]], tuple[str, ...]]] = {
    "-m": _match,
    "--comment": _comment,
    "--mark": _mark,
    "--set-xmark": _mark,
    "--or-mark": _or_mark,
    "--xor-mark": _xor_mark,
    "--probability": _probability,
    "--reject-with": _reject_with,
}
