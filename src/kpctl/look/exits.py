"""How the commands about Services end: the exit codes, for scripts and for the help text."""

from __future__ import annotations

FAILED = 1
USAGE = 2
REJECTED = 3
NOT_AGREED = 4

EPILOG = """\b
Exit codes:
  0  done
  1  failed: the host or the kernel refused
  2  the command line is wrong
  3  part of the input is rejected (plan, render: the rest is shown; apply: nothing is changed)
  4  apply: nothing is changed, because it needs your agreement (--prune, --force)
"""
