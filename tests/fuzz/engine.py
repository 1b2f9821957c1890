"""Runs one target for a time: `python -m tests.fuzz.engine TARGET SECONDS FOLDER`.

With atheris the code is instrumented and inputs are kept that lead to new ways through it; without,
the plain mutator runs. What is found is written to FOLDER, and the process fails. The last line is
`executions NUMBER`.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from itertools import count
from pathlib import Path
from random import Random

from tests.fuzz.inputs import CORPUS, corpus_of
from tests.fuzz.mutate import MOST_BYTES, mutations


def main(arguments: list[str]) -> int:
    name, seconds, folder = arguments[0], float(arguments[1]), Path(arguments[2])
    folder.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("atheris") is not None:
        return guided(name, seconds, folder)
    return plain(name, seconds, folder)


def guided(name: str, seconds: float, folder: Path) -> int:
    """Does not return: libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["kubeproxy", "kpctl"], enable_loader_override=False):
        from tests.fuzz.targets import TARGETS
    kept = folder / "corpus" / name
    kept.mkdir(parents=True, exist_ok=True)
    options = (
        f"-max_total_time={max(1, round(seconds))}",
        f"-max_len={MOST_BYTES}",
        f"-artifact_prefix={folder / name}-",
        *("-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"),
    )
    atheris.Setup([sys.argv[0], *options, str(kept), str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()
    return 0


def plain(name: str, seconds: float, folder: Path) -> int:
    """Change inputs at random until the time is over."""
    from tests.fuzz.targets import TARGETS

    seed, end = time.time_ns(), time.monotonic() + seconds
    inputs = mutations(corpus_of(name), Random(seed))
    for number in count(1):
        data = next(inputs)
        try:
            TARGETS[name](data)
        except Exception:
            (folder / f"{name}-crash").write_bytes(data)
            print(f"executions {number}")
            raise
        if number % 64 == 0 and time.monotonic() > end:
            break
    print(f"executions {number}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
