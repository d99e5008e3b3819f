"""The page for curl, as somebody would follow it: every command of it is run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import Served, new_token, served
from tests.support.servers import Running, server

PAGE = Path(__file__).parents[2] / "docs/how-to/http-api.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here"),
]


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def api(valkey: Running) -> Iterator[Served]:
    with served("--url", valkey.url) as running:
        yield running


@pytest.fixture
def shop(valkey: Running, tmp_path: Path) -> Iterator[Path]:
    """A folder with the shop of the page, and a worker that runs in it."""
    found = re.search(r"```python\n(# shop\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "shop.py").write_text(found[1])
    worker = subprocess.Popen(
        [sys.executable, "-m", "fairlead", "worker", "shop:app"],
        cwd=tmp_path,
        env={**os.environ, "FAIRLEAD_URL": valkey.url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield tmp_path
    worker.terminate()
    worker.wait(30)


def commands() -> list[str]:
    """The commands of the page that call the API, those of one block as one."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [block for block in blocks if "curl" in block]


def test_the_page_can_be_followed(valkey: Running, api: Served, shop: Path) -> None:
    token = new_token(valkey.url)

    def run(block: str) -> list[str]:
        block = block.replace("http://127.0.0.1:8800", api.url)
        block = block.replace("curl ", "curl -w '\\n' ")
        done = subprocess.run(
            ["bash", "-ec", f"API={api.url}/api/v1\n{block}"],
            cwd=shop,
            env={**os.environ, "TOKEN": token},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if line]

    submit, watch, result, fail, requeue, many = commands()
    (made,) = map(json.loads, run(submit))
    assert made.get("id") == "default:order-7", made
    seen, explained = map(json.loads, run(watch))
    assert seen["task"] == "shop.pay"
    assert explained["reasons"]
    (ended,) = map(json.loads, run(result))
    assert (ended["state"], ended["result"]) == ("completed", {"paid": 25})

    _, ended = map(json.loads, run(fail))
    assert (ended["state"], ended["error"]["message"]) == ("dead", "less than nothing")
    listed, put_back = map(json.loads, run(requeue))
    assert [task["id"] for task in listed["tasks"]] == ["default:order-8"]
    assert put_back == {"id": "default:order-8", "code": "done", "state": "queued"}

    first, second, end = map(json.loads, run(many))
    assert (first["code"], second["code"], end["code"]) == ("accepted", "refused", "end")
