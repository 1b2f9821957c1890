"""Completion as a shell does it: the printed script is loaded, and Tab is pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.support.waiting import LIMIT_SECONDS

from kpctl.cli import main
from kpctl.completion.program import Command, kube_proxy, of_click
from kpctl.completion.shells import SHELLS
from kubeproxy.config.flags import ALL_FLAGS

PROGRAMS = {"kube-proxy": kube_proxy(), "kpctl": of_click(main, "kpctl")}

# What bash does on Tab: split the line, call the function that `complete` registered.
_BASH_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function=$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

Script = Callable[[str, str], Path]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """The completion script of a program for a shell, as a file."""

    def write(program: str, shell: str) -> Path:
        path = tmp_path / f"{program}.{shell}"
        path.write_text(SHELLS[shell](PROGRAMS[program]))
        return path

    return write


def output(argv: Sequence[str | Path]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def bash_offers(path: Path, *words: str) -> set[str]:
    return set(output(["bash", "-c", _BASH_TAB, "bash", path, *words]).split())


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(
            f"{shell.upper()} IS NOT INSTALLED: its completion is not tested (make packages)"
        )
    return found


def test_bash_completes_commands_options_and_values_of_kpctl(script: Script) -> None:
    path = script("kpctl", "bash")
    assert bash_offers(path, "kpctl", "re") == {"render"}
    assert {"plan", "render", "lab"} <= bash_offers(path, "kpctl", "")
    assert bash_offers(path, "kpctl", "render", "--mo") == {"--mode"}
    assert bash_offers(path, "kpctl", "render", "--mode", "ip") == {"ipvs", "iptables"}
    assert bash_offers(path, "kpctl", "render", "--mode", "=", "nf") == {"nftables"}
    assert bash_offers(path, "kpctl", "completion", "") == {"bash", "zsh", "fish"}
    assert "cluster-ip" in bash_offers(path, "kpctl", "lab", "--flow", "cluster")


def test_bash_leaves_files_to_bash(script: Script) -> None:
    """An empty reply makes `complete -o default` offer file names."""
    path = script("kpctl", "bash")
    assert bash_offers(path, "kpctl", "plan", "web") == set()
    assert "complete -o default" in path.read_text()


def test_bash_completes_every_flag_of_kube_proxy(script: Script) -> None:
    path = script("kube-proxy", "bash")
    wanted = {f"--{flag.name}" for flag in ALL_FLAGS if not flag.is_hidden}
    assert wanted <= bash_offers(path, "kube-proxy", "--")
    assert bash_offers(path, "kube-proxy", "--proxy-mode", "=", "nft") == {"nftables"}
    assert "--healthz-port" not in bash_offers(path, "kube-proxy", "--healthz")


def test_fish_completes(script: Script) -> None:
    fish = needs("fish")

    def offers(program: str, line: str) -> set[str]:
        ask = f"source {script(program, 'fish')}; complete -C '{line}'"
        return {row.split("\t")[0] for row in output([fish, "-N", "-c", ask]).splitlines()}

    assert offers("kpctl", "kpctl ren") == {"render"}
    assert offers("kpctl", "kpctl render --mode nft") == {"nftables"}
    assert "--flow" in offers("kpctl", "kpctl lab --f")
    assert "--proxy-mode" in offers("kube-proxy", "kube-proxy --proxy")
    assert "--proxy-mode=ipvs" in offers("kube-proxy", "kube-proxy --proxy-mode=ipv")


def type_into(argv: Sequence[str], typed: Sequence[tuple[str, str]]) -> str:
    """Run a program on a terminal. Type each text and wait for what must appear after it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = ""
    try:
        for text, wanted in typed:
            os.write(ours, text.encode())
            seen = read_until(ours, wanted)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return seen


def read_until(terminal: int, wanted: str) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    seen = ""
    while not re.search(wanted, seen):
        left = deadline - time.monotonic()
        assert left > 0, f"{wanted!r} did not appear: {seen!r}"
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.parametrize(
    ("program", "typed", "wanted"),
    [
        ("kpctl", "kpctl ren", "kpctl render:END"),
        ("kpctl", "kpctl render --mode nft", "kpctl render --mode nftables:END"),
        ("kube-proxy", "kube-proxy --proxy-mode=user", "kube-proxy --proxy-mode=userspace:END"),
    ],
)
def test_zsh_completes(tmp_path: Path, program: str, typed: str, wanted: str) -> None:
    """In a terminal of its own, because zsh completes nowhere else."""
    zsh = needs("zsh")
    (tmp_path / f"_{program}").write_text(SHELLS["zsh"](PROGRAMS[program]))
    load = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    shown = type_into(
        [zsh, "-f", "-i"],
        [
            (f"PS1=; bindkey -e; {load}; print READY-$((1+1))\n", "READY-2"),
            # Tab completes; then the line is wrapped into a command that prints it.
            (f"{typed}\t\x01print -r -- DONE:\x05:END\n", r"\nDONE:[^\x1b\r]*:END\r"),
        ],
    )
    assert re.search(f"\nDONE:{wanted}", shown)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_stands_in_every_script(program: str, shell: str, script: Script) -> None:
    text = script(program, shell).read_text()

    def spelled(name: str) -> str:
        dashes = "--" if name.startswith("--") else "-"
        short = {"--": "-l ", "-": "-s "}[dashes]
        return short + name.removeprefix(dashes) if shell == "fish" else name

    def names(command: Command) -> list[str]:
        return [name for option in command.options for name in option.names]

    for _, command in PROGRAMS[program].walk():
        assert all(spelled(name) in text for name in names(command)), command.name


def test_kpctl_prints_the_script(run: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    for program, command in PROGRAMS.items():
        done = run(["kpctl", "completion", "--for", program, "bash"])
        assert done.stdout == SHELLS["bash"](command)
