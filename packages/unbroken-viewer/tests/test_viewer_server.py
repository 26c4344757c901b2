"""The viewer's server: only this machine, only the recordings of the folder; and what its page may do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import a_long_run
import aiohttp
import pytest
from yarl import URL

from unbroken.errors import UserError
from unbroken_viewer.listing import Shelf
from unbroken_viewer.server import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Next to it is a recording that is not in it."""
    folder = tmp_path_factory.mktemp("recordings") / "runs"
    folder.mkdir()
    a_long_run.play(folder / "long.jsonl")
    (folder / "bad.jsonl").write_text('{"hello": 1}\n')
    (folder.parent / "secret.jsonl").write_bytes((folder / "long.jsonl").read_bytes())
    return folder


def ask(path: Path, target: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    async def main() -> tuple[int, dict[str, str], bytes]:
        async with serving(Shelf(path)) as address, aiohttp.ClientSession() as session:
            url = URL(address.rstrip("/") + target, encoded=True)
            async with session.get(url, headers=headers) as answer:
                named = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, named, await answer.read()

    return asyncio.run(main())


def told(path: Path, target: str) -> Any:
    status, _, body = ask(path, target)
    assert status == 200, body
    return json.loads(body)


def test_the_policy_of_the_page_allows_only_its_own_script(folder: Path) -> None:
    status, headers, body = ask(folder, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert body.count(b"<script>") == 1
    assert b"innerHTML =" not in body
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"https://" not in body


def test_runs_are_listed_and_one_is_drawn(folder: Path) -> None:
    rows = told(folder, "/runs")
    assert [(row["name"], row["calls"], bool(row["problem"])) for row in rows] == [
        ("long.jsonl", 8, False),
        ("bad.jsonl", None, True),
    ]
    assert told(folder, "/runs/long.jsonl")["totals"]["calls"] == 8


def test_a_single_file_is_a_list_of_one(folder: Path) -> None:
    assert [row["name"] for row in told(folder / "long.jsonl", "/runs")] == ["long.jsonl"]
    assert told(folder / "long.jsonl", "/runs/long.jsonl")["run"] == "the-long-run"
    assert ask(folder / "long.jsonl", "/runs/bad.jsonl")[0] == 404


@pytest.mark.parametrize(
    "target",
    [
        "/runs/none.jsonl",
        "/runs/../secret.jsonl",
        "/runs/..%2fsecret.jsonl",
        "/runs/%2e%2e%2fsecret.jsonl",
        "/runs/..%5csecret.jsonl",
        "/runs/%2fetc%2fpasswd",
        "/runs/long.jsonl%00",
        "/runs/bad.jsonl",
        "/nothing",
    ],
)
def test_only_recordings_of_the_folder_can_be_read(folder: Path, target: str) -> None:
    status, _, body = ask(folder, target)
    assert status == 404
    assert json.loads(body)["error"]
    assert b"the-long-run" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "["])
def test_a_request_that_names_another_host_is_refused(folder: Path, host: str) -> None:
    status, _, body = ask(folder, "/runs", Host=host)
    assert status == 403
    assert b"the-long-run" not in body


def test_localhost_is_this_machine_too(folder: Path) -> None:
    assert ask(folder, "/runs", Host="localhost:80")[0] == 200


def test_the_data_is_not_readable_for_other_sites(folder: Path) -> None:
    assert ask(folder, "/runs/long.jsonl", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert ask(folder, "/runs/long.jsonl", **{"Sec-Fetch-Site": "same-origin"})[0] == 200


def test_a_port_in_use_is_reported_with_a_message(folder: Path) -> None:
    async def main() -> None:
        async with serving(Shelf(folder)) as address:
            port = URL(address).port or 0
            with pytest.raises(UserError, match=f"port {port} failed"):
                async with serving(Shelf(folder), port):
                    pass

    asyncio.run(main())


def test_a_missing_folder_is_reported_with_a_message(folder: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shelf = Shelf(gone)
    gone.rmdir()

    async def main() -> list[int]:
        async with serving(shelf) as address, aiohttp.ClientSession() as session:
            answers = [await session.get(address + target) for target in ("runs", "runs/x.jsonl")]
            for answer in answers:
                assert "cannot be listed" in (await answer.json())["error"]
            return [answer.status for answer in answers]

    assert asyncio.run(main()) == [404, 404]


def test_a_request_without_a_host_is_refused_without_a_traceback(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> bytes:
        async with serving(Shelf(folder)) as address:
            url = URL(address)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(b"GET /runs HTTP/1.1\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

    assert asyncio.run(main()).split()[1] in (b"400", b"403")
    assert [record.message for record in caplog.records if record.name.startswith("aiohttp")] == []
