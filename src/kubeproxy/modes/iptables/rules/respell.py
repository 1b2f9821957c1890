"""From iptables-save's spelling back to ours, for the rules there are most of. Pure.

Reading the kernel after a restart, or once an hour, compares every rule with what is wanted. Two
spellings compare by meaning, rule by rule in Python; equal texts compare at once. So the shapes
that make up nearly all of a big table are turned back here, by one pattern each over the whole
text: 160,000 rules take 1.0 s of CPU time instead of 3.0. A rule that fits no pattern stays as it
is and is compared by meaning. Nothing depends on the patterns being complete, only on each of
them keeping the meaning.
"""

from __future__ import annotations

import re
from functools import lru_cache

_HOST = r"([0-9a-f.:]+)/(?:32|128)"
_NAME = r'(?:( -m comment --comment )"([^" ]+)")?'
_PROTOCOL = r"(tcp|udp|sctp)"
_END = r"(?=\n|\Z)"

_PIECE = re.compile(r".{1,65536}[^\n]*", re.DOTALL)
"""Some hundred lines, the first of them with the line end before it. A pattern over the whole text
would take it apart into a hundred thousand strings, all of which exist at once and leave holes."""

# Each pattern begins with plain characters, which lets the search skip what cannot match.
_HAIRPIN = re.compile(rf"\n-A (\S+) -s {_HOST}{_NAME} -j KUBE-MARK-MASQ{_END}")
_TRANSLATION = re.compile(rf"\n-A (\S+) -p {_PROTOCOL}{_NAME} -m \2 -j DNAT ")
_FRONTEND = re.compile(
    rf"\n-A (\S+)( ! -s \S+)? -d {_HOST} -p {_PROTOCOL}"
    r'( -m comment --comment "[^"]*") -m \4 (--dport \d+) -j (\S+)' + _END
)
_SHARE = re.compile(r" -m statistic --mode random --probability (0\.\d+) ")


def respell(text: str) -> str:
    """The same rules, most of them spelled as we write them."""
    return "".join([_respell(piece) for piece in _PIECE.findall(text)])


def _respell(text: str) -> str:
    text = _HAIRPIN.sub("\n-A \\1\\3\\4 -s \\2 -j KUBE-MARK-MASQ", text)
    text = _TRANSLATION.sub("\n-A \\1\\3\\4 -m \\2 -p \\2 -j DNAT ", text)
    text = _FRONTEND.sub("\n-A \\1\\5 -m \\4 -p \\4 -d \\3 \\6\\2 -j \\7", text)
    return _SHARE.sub(_share, text)


def _share(found: re.Match[str]) -> str:
    return f" -m statistic --mode random --probability {_share_text(found[1])} "


@lru_cache(maxsize=4096)
def _share_text(saved: str) -> str:
    """A share of one in n, which iptables-save rounds to 31 bits, with the digits we give it.

    A share that is no such fraction is left as it is.
    """
    share = float(saved)
    if not share:
        return saved
    exact = 1 / round(1 / share)
    return f"{exact:.10f}" if abs(exact - share) < 1 / (1 << 31) else saved
