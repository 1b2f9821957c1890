"""Every fuzz target over its corpus and some thousand changes of it; `make fuzz` is the long run.

The inputs of a run depend on its date, so that the runs of many days add up, and a failure can be
run again: it names the input.
"""

from __future__ import annotations

import time
from itertools import islice
from random import Random

import pytest
from tests.fuzz.inputs import CORPUS, corpus_of
from tests.fuzz.mutate import mutations
from tests.fuzz.targets import TARGETS
from tests.support.effort import examples

SEED = int(time.time() // 86400)
MUTATIONS = 4000


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_kept_is_fine(name: str) -> None:
    corpus = corpus_of(name)
    assert corpus, f"no inputs in {CORPUS / name}"
    for data in corpus:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_near_is_fine(name: str) -> None:
    target = TARGETS[name]
    for data in islice(mutations(corpus_of(name), Random(SEED)), examples(MUTATIONS)):
        try:
            target(data)
        except Exception as found:
            found.add_note(f"the input: {data!r}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_and_much_are_fine(name: str) -> None:
    for data in (
        b"",
        b"\0",
        b"\0" * 4096,
        b"\xff" * 4096,
        b"[" * 4096,
        b'{"":' * 1024,
        b"a: " * 999,
    ):
        TARGETS[name](data)


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == TARGETS.keys()
    assert sum(path.stat().st_size for path in files) < 300_000


def test_changes_are_the_same_for_the_same_seed() -> None:
    first = list(islice(mutations([b"abc", b"xyz"], Random(1)), 50))
    assert first == list(islice(mutations([b"abc", b"xyz"], Random(1)), 50))
    assert len(set(first)) > 30
