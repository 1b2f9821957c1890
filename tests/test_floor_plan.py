"""The floor plan holds: rooms of the same purpose are laid out the same, and the map names all."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from kubeproxy.modes.base import Mode
from kubeproxy.modes.registry import load_mode, mode_names

ROOT = Path(__file__).parent.parent
DAEMON = ROOT / "src/kubeproxy"
PEOPLE = ROOT / "src/kpctl"

MODE_FILES = {
    "check",
    "cleanup",
    "describe",
    "items",
    "mode",
    "names",
    "options",
    "render",
    "scaffold",
}
MODE_FOLDERS = {"rules", "sinks"}
MODE_MAY_HAVE = {"compile"}
"""Not in a mode all of whose batches are compiled by `netfilter`."""
MODE_PROGRAMS = {"userspace": {"carrier"}}
"""A program of its own that a mode runs."""

KERNEL_FAMILIES = {"conntrack", "ipset", "ipvs", "nfacct", "nflog", "nftables", "route"} | {
    "sock_diag"
}
KERNEL_MAY_HAVE = {
    "conntrack": {"entries"},
    "nftables": {
        *("fields", "notifications", "numbers", "packing", "parsing", "transaction", "values"),
        "traces",
    },
}
"""Further parts of a wire format, pure as well."""

WORDS_TO_TRANSLATE = re.compile(
    r"\b(told|said|heard|anew|nobody|somebody|whoever|news|wish|wishes)\b", re.IGNORECASE
)


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}


def test_the_top_of_the_daemon_is_a_front_door() -> None:
    assert modules(DAEMON) == {"__main__", "cli", "errors", "version"}


def rooms(package: Path) -> Iterator[str]:
    """Every module and folder, as the map may name it: `sync/engine`."""
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).with_suffix("")
        if inside.name != "__init__":
            yield str(inside)


def named_by(room: str, mapped: str) -> bool:
    """Is the room on the map, by its own name or as part of a row for all modes or families?"""
    folder, _, name = room.rpartition("/")
    return any(
        re.search(rf"^\| `{re.escape(row)}/?`.*`{re.escape(name)}`", mapped, re.MULTILINE)
        for row in (folder or ".", *_shared_rows(folder))
    )


def _shared_rows(folder: str) -> Iterator[str]:
    parts = folder.split("/")
    if parts[0] == "modes" and len(parts) > 1:
        yield "/".join(("modes", "*", *parts[2:]))
    if parts[0] == "kernel" and len(parts) > 1:
        yield "kernel/*"


@pytest.mark.parametrize("package", [DAEMON, PEOPLE], ids=lambda path: path.name)
def test_every_module_stands_on_the_map(package: Path) -> None:
    """ARCHITECTURE.md has a row for each folder, and the row names each of its modules."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    mapped = text.partition(f"### `{package.name}`")[2].partition("\n### ")[0]
    missing = [room for room in rooms(package) if not named_by(room, mapped)]
    assert not missing


@pytest.mark.parametrize("name", mode_names())
def test_every_mode_has_the_same_layout(name: str) -> None:
    folder = DAEMON / "modes" / name
    assert modules(folder) == MODE_FILES
    assert folders(folder) - MODE_MAY_HAVE == MODE_FOLDERS | MODE_PROGRAMS.get(name, set())


@pytest.mark.parametrize("name", mode_names())
def test_every_mode_has_the_same_names_for_the_same_roles(name: str) -> None:
    """`render`, `scaffold`, `describe`, `check`, `cleanup`, `Options`, `MODE`."""
    for role in ("render", "scaffold", "describe", "check", "cleanup"):
        function = getattr(import_module(f"kubeproxy.modes.{name}.{role}"), role)
        assert inspect.isfunction(function), role
    options = import_module(f"kubeproxy.modes.{name}.options")
    mode = load_mode(name)
    assert isinstance(mode, Mode)
    assert mode.options is options.options_of
    assert mode.check is import_module(f"kubeproxy.modes.{name}.check").check
    assert mode.cleanup is import_module(f"kubeproxy.modes.{name}.cleanup").cleanup


def test_every_netlink_family_is_a_wire_format_and_a_table() -> None:
    assert folders(DAEMON / "kernel") == KERNEL_FAMILIES | {"netlink"}
    for family in sorted(KERNEL_FAMILIES):
        wanted = {"wire", "table"} | KERNEL_MAY_HAVE.get(family, set())
        assert modules(DAEMON / "kernel" / family) == wanted, family


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def test_docstrings_need_no_translation() -> None:
    """Words of the field: see style in CONTRIBUTING.md."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {hit[0]}"
        for package in (DAEMON, PEOPLE)
        for path in sorted(package.rglob("*.py"))
        for line, text in docstrings(path)
        if (hit := WORDS_TO_TRANSLATE.search(text))
    ]
    assert not found


IMPURE = {"asyncio", "socket", "subprocess", "os", "time", "random", "logging", "aiohttp"}


def imported(path: Path) -> set[str]:
    """The modules a file imports when it is imported itself."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.Import(names=names):
                found |= {name.name.partition(".")[0] for name in names}
            case ast.ImportFrom(module=str(module)):
                found.add("kubeproxy.logs" if module == "kubeproxy.logs" else module.split(".")[0])
    return found


def test_a_module_that_calls_itself_pure_is() -> None:
    """Beyond the file names that the import contracts cover."""
    impure = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in sorted(DAEMON.rglob("*.py"))
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(path.read_text())) or "")
        if (found := imported(path) & (IMPURE | {"kubeproxy.logs"}))
    }
    assert not impure
