"""Every command of the documentation is marked, and those to be run do what the page shows."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from scripts.docs.site import PAGES as SITE_PAGES
from tests.docs.conftest import Shell
from tests.support.guide import COMMAND_LANGUAGES, Block, blocks, commands, matches

from kpctl.flows.library import find_flow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OTHERS = {ROOT / "README.md", *(ROOT / page for page in SITE_PAGES if (ROOT / page).exists())}
PAGES = sorted({*DOCS.rglob("*.md"), *OTHERS} - {DOCS / "benchmarks.notes.md"})
TO_RUN = [page for page in PAGES if any(block.kind == "run" for block in blocks(page))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_is_marked(page: Path) -> None:
    """A block of commands says whether a test runs it."""
    unmarked = [
        f"{name(page)}:{block.line}"
        for block in blocks(page)
        if block.language in COMMAND_LANGUAGES and not (block.language == "console" and block.kind)
    ]
    assert not unmarked, "write ```console run, ```console norun or ```console flow"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_block_without_language_holds_no_command(page: Path) -> None:
    """Or its commands would escape the mark: pictures are `text`, commands `console`."""
    bare = [
        f"{name(page)}:{block.line}"
        for block in blocks(page)
        if block.language in ("", "text")
        and any(_is_prompt(line) for line in block.body.splitlines())
    ]
    assert not bare


def _is_prompt(line: str) -> bool:
    return line.startswith(("$ ", "# ", "client$ ", "kubectl ", "kpctl ", "make "))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_flow_that_is_named_exists(page: Path) -> None:
    for block in blocks(page):
        if block.kind == "flow":
            for command in commands(block.body):
                words = shlex.split(command.text)
                assert words[:3] == ["kpctl", "lab", "--flow"], command.text
                assert find_flow(words[3])


@pytest.mark.kernel
@pytest.mark.parametrize("page", TO_RUN, ids=name)
def test_the_guide_does_what_it_shows(page: Path, shells: dict[str, Shell], tmp_path: Path) -> None:
    """Blocks with a title are files, blocks to be run are typed, in the order of the page."""
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.body)
        if block.kind == "run":
            run(block, shells)


def run(block: Block, shells: dict[str, Shell]) -> None:
    for command in commands(block.body):
        code, printed = shells[command.host].run(command.text)
        assert code == 0, f"line {block.line}: {command.text} exits with {code}:\n{printed}"
        wanted = "\n".join(command.output)
        assert matches(command.output, printed), (
            f"line {block.line}: {command.text} prints\n{printed}\nnot\n{wanted}"
        )


def test_a_guide_may_leave_out_what_varies() -> None:
    assert matches(("a ... c", "...", "z"), "a b c\n1\n2\nz\n")
    assert matches(("a", "...", "z"), "a\nz\n")
    assert not matches(("a",), "b\n")
    assert not matches(("a",), "a\nb\n")


@pytest.mark.kernel
def test_a_shown_output_that_is_wrong_is_noticed(shells: dict[str, Shell]) -> None:
    block = Block("console", ("run",), "", "$ echo one\ntwo\n", 1)
    with pytest.raises(AssertionError, match="prints"):
        run(block, shells)
    with pytest.raises(AssertionError, match="exits with 3"):
        run(Block("console", ("run",), "", "$ (exit 3)\n", 1), shells)
