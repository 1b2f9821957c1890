"""What we believe a shared chain holds, and the fewest commands that change it.

Rules are inserted by position and deleted by content: if the rule is not there, the tool refuses
the restore, where a deletion by position would hit whatever rule stands there. When most of a
chain changes, rewriting it is cheaper, and just as atomic because one restore commits a table at
once. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct

from kubeproxy.modes.netfilter.items import Order, Rules

_REWRITE_SHARE = 0.5
"""Above this share of changed lines a chain is rewritten."""


class ChainEdit(Struct, frozen=True):
    """How to change one shared chain, and what it holds afterwards."""

    is_rewritten: bool
    commands: str
    after: SharedContent


class SharedContent:
    """The sections of one shared chain in order; immutable."""

    __slots__ = ("_lengths", "_orders", "_texts")

    def __init__(self, orders: Sequence[Order] = (), texts: Sequence[str] = ()) -> None:
        self._orders = list(orders)
        self._texts = list(texts)
        self._lengths = [text.count("\n") for text in self._texts]

    @property
    def line_count(self) -> int:
        return sum(self._lengths)

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def sections(self) -> list[tuple[Order, str]]:
        return list(zip(self._orders, self._texts, strict=True))

    def reusing(self, former: SharedContent) -> SharedContent:
        """The same, made of the objects of `former` where they are equal.

        Then a full read leaves nothing of its own behind. What stays would lie between all that is
        freed after it, and keep that from going back to the kernel.
        """
        if self._orders == former._orders and self._texts == former._texts:
            return former
        known = {order: (order, text) for order, text in former.sections()}
        sections = (
            held if (held := known.get(order)) and held[1] == text else (order, text)
            for order, text in self.sections()
        )
        orders, texts = zip(*sections, strict=True) if self._orders else ((), ())
        return SharedContent(orders, texts)

    def edit(self, changes: Mapping[Order, Rules | None], *, is_new: bool = False) -> ChainEdit:
        """Give each named section its new rules (None: remove it)."""
        wanted = {order: "" if new is None else new.text for order, new in changes.items()}
        real = {order: text for order, text in wanted.items() if text != self._text_of(order)}
        if is_new or self._is_mostly_changed(real):
            after = self._merged(real)
            return ChainEdit(True, after.text, after)
        return self._edit_lines(real)

    def _text_of(self, order: Order) -> str:
        index = bisect_left(self._orders, order)
        found = index < len(self._orders) and self._orders[index] == order
        return self._texts[index] if found else ""

    def _is_mostly_changed(self, changes: Mapping[Order, str]) -> bool:
        if len(changes) < len(self._orders) * _REWRITE_SHARE:
            return False
        touched = sum(
            text.count("\n") + self._text_of(order).count("\n") for order, text in changes.items()
        )
        return touched > (self.line_count + touched) * _REWRITE_SHARE

    def _merged(self, changes: Mapping[Order, str]) -> SharedContent:
        sections = {**dict(zip(self._orders, self._texts, strict=True)), **changes}
        kept = sorted(order for order, text in sections.items() if text)
        return SharedContent(kept, [sections[order] for order in kept])

    def _edit_lines(self, changes: Mapping[Order, str]) -> ChainEdit:
        after = self._copy()
        commands: list[str] = []
        for order, text in sorted(changes.items()):
            commands += after._remove(order)
            commands += after._insert(order, text)
        return ChainEdit(False, "".join(commands), after)

    def _copy(self) -> SharedContent:
        """A copy made by copying lists: nothing is computed for sections that stay."""
        copy = SharedContent()
        copy._orders = self._orders.copy()
        copy._texts = self._texts.copy()
        copy._lengths = self._lengths.copy()
        return copy

    def _remove(self, order: Order) -> list[str]:
        index = bisect_left(self._orders, order)
        if index == len(self._orders) or self._orders[index] != order:
            return []
        lines = self._texts[index].splitlines()
        del self._orders[index], self._texts[index], self._lengths[index]
        return [f"-D{line[2:]}\n" for line in lines]

    def _insert(self, order: Order, text: str) -> list[str]:
        if not text:
            return []
        index = bisect_left(self._orders, order)
        number = sum(self._lengths[:index]) + 1
        is_last = index == len(self._orders)
        lines = text.splitlines()
        self._orders.insert(index, order)
        self._texts.insert(index, text)
        self._lengths.insert(index, len(lines))
        if is_last:
            return [text]
        return [_insert_command(line, number + offset) for offset, line in enumerate(lines)]


NO_CONTENT = SharedContent()


def _insert_command(line: str, number: int) -> str:
    """`-A CHAIN spec` as `-I CHAIN number spec`."""
    _, chain, spec = line.split(" ", 2)
    return f"-I {chain} {number} {spec}\n"
