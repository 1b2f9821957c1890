"""How commands end: the exit codes, for scripts and for the help text."""

from __future__ import annotations

FAILED = 1
USAGE = 2
REJECTED = 3
NOT_AGREED = 4
NOT_RUNNING = 5
TROUBLE = 6
NOT_FOUND = 7

EPILOG = """\b
Exit codes:
  0  done
  1  failed: the host or the kernel refused
  2  the command line is wrong
  3  part of the input is rejected (plan, render: the rest is shown; apply: nothing is changed)
  4  apply: nothing is changed, because it needs your agreement (--prune, --force)
"""


def epilog(
    done: str, *, examples: str, trouble: str = "", absent: str = "", has_files: bool = True
) -> str:
    """Return the end of a help text: examples, and the exit codes of a command about a proxy."""
    codes = {
        0: done,
        FAILED: "failed: the kernel refuses, or an answer or a file is not understood",
        USAGE: "the command line is wrong",
        REJECTED: "part of the files given with -f is rejected; the rest is shown"
        if has_files
        else "",
        NOT_RUNNING: "no proxy answers",
        TROUBLE: trouble,
        NOT_FOUND: absent,
    }
    shown = "".join(f"  {code}  {text}\n" for code, text in codes.items() if text)
    return f"\b\nExamples:\n{examples}\n\b\nExit codes:\n{shown}"
