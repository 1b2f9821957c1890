"""A hook of MkDocs: pages and links of the repository work on the site as they do in a repository.

Documents outside docs/ become pages under their own path, and other files that a page links to are
copied, so that no link leads out of the site. Markdown is written for the repository only.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = "docs"
PAGES = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "deploy/README.md",
    "deploy/kubeadm/README.md",
)
"""Documents that stay where people and tools expect them."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
_MARK = re.compile(r"^( *```console) (?:run|norun|flow)$", re.MULTILINE)
"""What tests do with a block of commands (see CONTRIBUTING.md) is no option of the highlighter."""
_FENCE = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, and the files that pages link to."""
    pages = [name for name in PAGES if (ROOT / name).exists()]
    for name in pages:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    sources = [f"{DOCS}/{f.src_uri}" for f in files.documentation_pages() if f.src_uri not in pages]
    for target in sorted({t for source in (*sources, *pages) for t in linked(source)}):
        if (ROOT / target).is_file() and not target.startswith(f"{DOCS}/") and target not in pages:
            files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places of the repository into links between places of the site."""
    source = page.file.src_uri if page.file.src_uri in PAGES else f"{DOCS}/{page.file.src_uri}"

    def on_site(match: re.Match[str]) -> str:
        target = _target(source, match[1])
        place = target.removeprefix(f"{DOCS}/")
        return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")

    return _MARK.sub(r"\1", _outside_fences(markdown, on_site))


def linked(source: str) -> Iterator[str]:
    """The files of the repository that a document links to."""
    text = _FENCE.sub("", (ROOT / source).read_text(encoding="utf-8"))
    for match in _LINK.finditer(text):
        yield _target(source, match[1])


def _target(source: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _outside_fences(markdown: str, change: Callable[[re.Match[str]], str]) -> str:
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(change, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(change, markdown[end:])])
