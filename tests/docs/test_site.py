"""The site builds without a warning and loads nothing from elsewhere; made pages are current."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scripts.docs.__main__ import DOCS, generated
from scripts.docs.site import PAGES, linked
from tests.support.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
MARKDOWN = sorted(DOCS.rglob("*.md"))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning fails the build."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_pages_made_by_code_are_current() -> None:
    files = generated()
    old = [name for name, text in files.items() if _text(DOCS / name) != text]
    assert not old, "run `make reference`"
    made = {path for name in ("reference", "learn", "man") for path in (DOCS / name).glob("*")}
    assert made == {DOCS / name for name in files if "/" in name}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


class _Loaded(HTMLParser):
    """Addresses that a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_fetched = tag == "link" and values.get("rel") not in ("canonical", "next", "prev")
        name = "href" if is_fetched else "src"
        self.found += [values[name] or ""] if name in values else []


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    """Neither by tags nor by style sheets and pictures: the site works without a network."""
    outside = re.compile(r"^(?:[a-z]+:)?//")
    for path in site.rglob("*.html"):
        page = _Loaded()
        page.feed(path.read_text(encoding="utf-8"))
        assert not [url for url in page.found if outside.match(url)], path
    for path in (*site.rglob("*.css"), *site.rglob("*.svg")):
        urls = re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", path.read_text(encoding="utf-8"))
        assert not [url for url in urls if outside.match(url)], path


def test_every_fenced_block_is_understood(site: Path) -> None:
    """One that is not becomes a paragraph that begins with its fence, without a warning."""
    broken = [path for path in site.rglob("*.html") if _has_raw_fence(path.read_text("utf-8"))]
    assert not broken


def _has_raw_fence(html: str) -> bool:
    return re.search(r"<p>`{3}|<code>console (?:run|norun|flow)\b", html) is not None


def test_every_page_reaches_the_site(site: Path) -> None:
    pages = [path.relative_to(DOCS) for path in MARKDOWN if path.name != "benchmarks.notes.md"]
    pages += [Path(name) for name in PAGES if (ROOT / name).exists()]
    missing = [page for page in pages if not _html(site, page).exists()]
    assert not missing


def _html(site: Path, page: Path) -> Path:
    name = "index.html" if page.name in ("index.md", "README.md") else f"{page.stem}.html"
    return site / page.parent / name


@pytest.mark.parametrize(
    "page", [*(str(path.relative_to(ROOT)) for path in MARKDOWN), "README.md", *PAGES]
)
def test_links_lead_to_files_of_the_repository(page: str) -> None:
    """The same links that the site's build checks, as a repository browser follows them."""
    if not (ROOT / page).exists():
        pytest.skip(f"there is no {page}")
    missing = [target for target in linked(page) if not (ROOT / target).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["kube-proxy.8", "kpctl.8"])
def test_a_man_page_is_well_formed(name: str) -> None:
    man = shutil.which("man")
    if man is None:
        pytest.skip("MAN IS NOT INSTALLED: man pages are only compared, not formatted")
    done = subprocess.run(
        [man, "--warnings", "-l", DOCS / "man" / name],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0
    assert not done.stderr
    assert "SYNOPSIS" in done.stdout and "--help" in done.stdout


def test_the_recording_shows_a_demo_whose_claims_held() -> None:
    picture = (DOCS / "demo.svg").read_text(encoding="utf-8")
    assert "✔" in picture and "✘" not in picture
    assert "everything is removed again" in picture
