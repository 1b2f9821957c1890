"""Command line → values of flags, with the rules and error texts operators know from upstream.

The rules are pflag's: `-` and `_` are the same in names, booleans take no separate value, `-v4`,
`-v 4` and `-v=4` are equal, `--` ends the flags, and flags may stand between other arguments. Which
flags exist is in `flags`. What they mean for the configuration is left to `load`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kubeproxy.config.flags import ALL_FLAGS, FLAGS, SHORTHANDS, Flag
from kubeproxy.config.kinds import Value
from kubeproxy.errors import ConfigError
from kubeproxy.go.quoting import quote


class FlagError(ConfigError):
    """The command line cannot be read. The usage text is printed with it."""


class ParsedFlags(msgspec.Struct, frozen=True):
    """The values of one command line."""

    values: Mapping[str, Value]
    """The value of every flag, which is the default if it was not given."""
    given: frozenset[str]
    arguments: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """Lines about deprecated flags, for stderr."""

    def text(self, name: str) -> str:
        """The value of a flag that holds a text."""
        value = self.values[name]
        assert isinstance(value, str), name
        return value

    def is_set(self, name: str) -> bool:
        """Is this boolean flag on?"""
        return self.values[name] is True

    def integer(self, name: str) -> int:
        """The value of a flag that holds a whole number."""
        value = self.values[name]
        assert isinstance(value, int), name
        return value

    def formatted(self) -> dict[str, str]:
        """Return every flag as text, sorted by name, for `/flagz` and the start-up log."""
        return {name: FLAGS[name].kind.format(self.values[name]) for name in sorted(self.values)}


def parse_flags(argv: Sequence[str]) -> ParsedFlags:
    """Parse the arguments after the program's name. Raises FlagError."""
    return _Reader(argv).read()


class _Reader:
    """Walks over the arguments once."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._rest = list(reversed(argv))
        self._given: dict[str, Value] = {}
        self._arguments: list[str] = []
        self._notices: list[str] = []

    def read(self) -> ParsedFlags:
        while self._rest:
            word = self._rest.pop()
            if word == "--":
                self._arguments += reversed(self._rest)
                break
            self._take(word)
        values = {flag.name: self._given.get(flag.name, flag.default) for flag in ALL_FLAGS}
        notices = tuple(self._notices)
        return ParsedFlags(values, frozenset(self._given), tuple(self._arguments), notices)

    def _take(self, word: str) -> None:
        if word.startswith("--"):
            self._take_long(word)
        elif word.startswith("-") and word != "-":
            self._take_short(word)
        else:
            self._arguments.append(word)

    def _take_long(self, word: str) -> None:
        name, equals, text = word[2:].partition("=")
        if not name or name.startswith("-"):
            raise FlagError(f"bad flag syntax: {word}")
        flag = FLAGS.get(name.replace("_", "-"))
        if flag is None:
            raise FlagError(f"unknown flag: --{name}")
        if not equals:
            text = flag.kind.bare or self._next(f"flag needs an argument: {word}")
        self._set(flag, text)

    def _take_short(self, word: str) -> None:
        """Take `-v4`, `-v=4` or `-v 4`, and letters of switches in a row."""
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            flag = SHORTHANDS.get(letter)
            if flag is None:
                raise FlagError(f"unknown shorthand flag: '{letter}' in {word}")
            if letters.startswith("="):
                text, letters = letters[1:], ""
            elif flag.kind.bare:
                text = flag.kind.bare
            else:
                missing = f"flag needs an argument: '{letter}' in {word}"
                text, letters = letters or self._next(missing), ""
            self._set(flag, text)

    def _next(self, missing: str) -> str:
        if not self._rest:
            raise FlagError(missing)
        return self._rest.pop()

    def _set(self, flag: Flag, text: str) -> None:
        try:
            self._given[flag.name] = flag.kind.parse(text, self._given.get(flag.name))
        except ValueError as error:
            shown = f"-{flag.shorthand}, --{flag.name}" if flag.shorthand else f"--{flag.name}"
            raise FlagError(
                f"invalid argument {quote(text)} for {quote(shown)} flag: {error}"
            ) from None
        if flag.deprecated:
            self._notices.append(f"Flag --{flag.name} has been deprecated, {flag.deprecated}")
