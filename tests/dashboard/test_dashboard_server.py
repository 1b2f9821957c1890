"""Who may read the dashboard: the person who started it, in their own browser, and no one else."""

from __future__ import annotations

from collections.abc import Awaitable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundles import held, write_by_hand

from kpctl.dashboard.feed import StillFeed
from kpctl.dashboard.server import dashboard_handler, page_files
from kpctl.snapshot.bundle import read_bundle
from kubeproxy.status.http import Handler, Request, Response

TOKEN, PORT = "secret", 8001
HOME = {"host": f"127.0.0.1:{PORT}"}


@pytest.fixture
def handler(tmp_path: Path) -> Handler:
    path = write_by_hand(tmp_path / "bundle", [held("shop/web")])
    return dashboard_handler(StillFeed(read_bundle(path)), TOKEN, PORT)


async def ask(handler: Handler, path: str, headers: dict[str, str] = HOME, **more: Any) -> Response:
    answer = handler(Request(more.pop("method", "GET"), path, more.pop("query", {}), headers))
    return await answer if isinstance(answer, Awaitable) else answer


async def test_the_page_and_its_data_are_served_below_the_token(handler: Handler) -> None:
    page = await ask(handler, f"/{TOKEN}/")
    assert page.status == 200
    assert b"<main" in page.body
    data = await ask(handler, f"/{TOKEN}/data/changes")
    assert data.status == 200
    assert b'"shop"' in data.body
    assert (await ask(handler, f"/{TOKEN}/app.js")).status == 200
    assert (await ask(handler, f"/{TOKEN}/../cli.py")).status == 404


@pytest.mark.parametrize("path", ["/", "/secret", "/other/", "/secre/", "/data/changes", "*", ""])
async def test_nothing_is_served_without_the_token(handler: Handler, path: str) -> None:
    assert (await ask(handler, path)).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": "rebound.example:8001"},
        {"host": "127.0.0.1"},
        {"host": "127.0.0.1:8002"},
        {**HOME, "origin": "http://evil.example"},
        {**HOME, "origin": "null"},
        {**HOME, "sec-fetch-site": "cross-site"},
        {**HOME, "sec-fetch-site": "same-site"},
    ],
)
async def test_foreign_hosts_and_sites_are_refused(
    handler: Handler, headers: dict[str, str]
) -> None:
    assert (await ask(handler, f"/{TOKEN}/data/changes", headers)).status == 403


@pytest.mark.parametrize("site", ["none", "same-origin"])
async def test_the_own_page_may_ask(handler: Handler, site: str) -> None:
    headers = {"host": f"localhost:{PORT}", "sec-fetch-site": site}
    assert (await ask(handler, f"/{TOKEN}/data/changes", headers)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
async def test_only_get_is_answered(handler: Handler, method: str) -> None:
    assert (await ask(handler, f"/{TOKEN}/", method=method)).status == 405


async def test_every_response_forbids_what_the_page_does_not_need(handler: Handler) -> None:
    for path in (f"/{TOKEN}/", f"/{TOKEN}/none", "/", f"/{TOKEN}/data/changes"):
        headers = (await ask(handler, path)).headers
        assert len(dict(headers)) == len(headers), "a header is there twice"
        policy = dict(headers)["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert dict(headers)["Cache-Control"] == "no-store"


@pytest.mark.parametrize("query", [{"since": ("x",)}, {"since": ("9" * 400,)}, {"since": ("-1",)}])
async def test_a_senseless_revision_begins_again(handler: Handler, query: Any) -> None:
    answer = await ask(handler, f"/{TOKEN}/data/changes", query=query)
    assert b'"isReset":true' in answer.body


async def test_an_unknown_service_is_an_empty_answer(handler: Handler) -> None:
    query = {"namespace": ("no",), "name": ("such",)}
    answer = await ask(handler, f"/{TOKEN}/data/service", query=query)
    assert (answer.status, answer.body) == (200, b"[]")


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {value or "" for name, value in attrs if name in ("src", "href")}


def test_the_page_refers_to_its_own_files_only() -> None:
    files = page_files()
    reader = _Addresses()
    reader.feed(files["index.html"].body.decode())
    assert {each for each in reader.found if not each.startswith("#")} <= files.keys()
    for name, file in files.items():
        text = file.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacent") if word in text]
