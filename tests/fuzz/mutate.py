"""Changes bytes at random, for where atheris is not installed and for the short run.

Pure but for the random numbers, which are an argument: a seed gives the same inputs again. Atheris
is better by far in finding new ways through the code; this finds what is near the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

MOST_BYTES = 4096

_NUMBERS = (0, 1, 2, 3, 4, 7, 8, 16, 20, 127, 128, 255, 256, 32767, 32768, 65535)
_WORDS = (
    *(
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b" ",
        b":",
        b",",
        b"-",
        b"=",
        b"*",
        b"\x00",
        b"\xff",
        b"\xc2\x85",
    ),
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\\\",
        b"\\\\ud800",
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"0x10",
    ),
    *(b"&a ", b"*a", b"<<: ", b"!!binary ", b"---\n", b"%YAML 9.9\n", b"\xe2\x80\xa8", b"\x1b[2J"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n", b"HTTP/1.1"),
)

Change = Callable[[bytearray, Random], None]


def _flip(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random) -> None:
    data[random.randrange(len(data))] = random.randrange(256)


def _delete(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data))
    del data[start : start + random.randint(1, 16)]


def _repeat(data: bytearray, random: Random) -> None:
    start = random.randrange(len(data))
    piece = data[start : start + random.randint(1, 64)]
    data[start:start] = piece * random.randint(1, 8)


def _insert(data: bytearray, random: Random) -> None:
    start = random.randint(0, len(data))
    data[start:start] = random.choice(_WORDS)


def _number(data: bytearray, random: Random) -> None:
    """A length or a number in the middle: this is how binary formats are broken."""
    size, order = random.choice((1, 2, 4)), random.choice(("little", "big"))
    start = random.randrange(len(data))
    value = random.choice(_NUMBERS) % (1 << 8 * size)
    data[start : start + size] = value.to_bytes(size, "little" if order == "little" else "big")


def _cut(data: bytearray, random: Random) -> None:
    del data[random.randint(0, len(data)) :]


_CHANGES: tuple[Change, ...] = (_flip, _set, _delete, _repeat, _insert, _number, _cut)


def mutations(corpus: Sequence[bytes], random: Random) -> Iterator[bytes]:
    """Inputs without end: pieces of the corpus, changed a few times."""
    seeds = [*corpus] or [b""]
    while True:
        data = bytearray(random.choice(seeds))
        if random.random() < 0.2:  # the start of one, the end of another
            other = random.choice(seeds)
            data = data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]
        for _ in range(random.randint(1, 5)):
            if data:
                random.choice(_CHANGES)(data, random)
            else:
                _insert(data, random)
        yield bytes(data[:MOST_BYTES])
