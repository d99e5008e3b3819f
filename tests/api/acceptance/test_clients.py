"""Clients that others' programs generate from the description: they compile, and submit a task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Served, new_token, served
from tests.support.servers import Running, server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = """
import type { components, paths } from "./api";

type NewTask = components["schemas"]["NewTask"];
type Accepted =
  paths["/api/v1/tasks"]["post"]["responses"]["201"]["content"]["application/json"];
type Task = components["schemas"]["TaskView"];
type Problem = components["schemas"]["ProblemBody"];

const base = process.env.FAIRLEAD_API!;
const headers = {
  Authorization: `Bearer ${process.env.FAIRLEAD_TOKEN}`,
  "Content-Type": "application/json",
};

async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await fetch(base + path, { method, headers, body: JSON.stringify(body) });
  if (!answer.ok) {
    const problem = (await answer.json()) as Problem;
    throw new Error(`${problem.title}: ${problem.field} must be ${problem.rule}`);
  }
  return (await answer.json()) as T;
}

const task: NewTask = { task: "add", args: [1], kwargs: { b: 2 }, id: "from-typescript" };
const made = await call<Accepted>("POST", "/api/v1/tasks", task);
const seen = await call<Task>("GET", `/api/v1/tasks/${made.id}`);
console.log(JSON.stringify({ id: made.id, state: seen.state, task: seen.task }));
try {
  await call<Accepted>("POST", "/api/v1/tasks", { task: "add", queue: "a b" });
} catch (error) {
  console.log((error as Error).message);
}

// The types are worth something: what the server would refuse does not compile.
// @ts-expect-error
export const missing: NewTask = { args: [] };
// @ts-expect-error
export const wrong: NewTask = { task: "add", args: "no list" };
// @ts-expect-error
export const unknown: NewTask = { task: "add", surprise: 1 };
"""

CALLER = """
import os, pkgutil, importlib, sys

import fairlead_client
from fairlead_client import AuthenticatedClient
from fairlead_client.api.tasks import get_tasks_id, post_tasks
from fairlead_client.models import Accepted, NewTask, ProblemBody, TaskView

for module in pkgutil.walk_packages(fairlead_client.__path__, "fairlead_client."):
    importlib.import_module(module.name)
url, token = os.environ["FAIRLEAD_API"], os.environ["FAIRLEAD_TOKEN"]
client = AuthenticatedClient(base_url=url, token=token)
made = post_tasks.sync(client=client, body=NewTask(task="add", args=[1, 2], id="from-python"))
assert isinstance(made, Accepted), made
seen = get_tasks_id.sync("from-python", client=client)
assert isinstance(seen, TaskView), seen
print(made.id, seen.state.value if hasattr(seen.state, "value") else seen.state)
refused = post_tasks.sync(client=client, body=NewTask(task="add", queue="a b"))
assert isinstance(refused, ProblemBody), refused
print(refused.field)
"""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Running]:
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def api(valkey: Running) -> Iterator[Served]:
    with served("--url", valkey.url, "--drain-delay", "0.1") as running:
        yield running


@pytest.fixture
def environment(valkey: Running, api: Served) -> dict[str, str]:
    token = new_token(valkey.url, "--scopes", "read,submit")
    return {**os.environ, "FAIRLEAD_API": api.url, "FAIRLEAD_TOKEN": token}


@pytest.fixture
def description(environment: dict[str, str], tmp_path: Path) -> Path:
    """What the server says of itself, as a file."""
    headers = {"authorization": f"Bearer {environment['FAIRLEAD_TOKEN']}"}
    answer = httpx.get(f"{environment['FAIRLEAD_API']}/openapi.json", headers=headers)
    path = tmp_path / "openapi.json"
    path.write_bytes(answer.content)
    return path


def run(*command: str, folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done.stdout


def fetched(*command: str, folder: Path) -> None:
    """Install something; a registry that is not there is no fault of ours."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{command[0]} could not install: {done.stderr[-300:]}")


@pytest.mark.long(20)
def test_types_for_typescript_compile_and_submit(
    environment: dict[str, str], description: Path, tmp_path: Path
) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no Node here")
    packages = ("openapi-typescript@7", "typescript@5", "@types/node@20")
    (tmp_path / "package.json").write_text('{"private": true, "type": "module"}')
    fetched(npm, "install", "--no-audit", "--no-fund", "--silent", *packages, folder=tmp_path)
    bin = tmp_path / "node_modules/.bin"
    run(str(bin / "openapi-typescript"), description.name, "-o", "api.ts", folder=tmp_path)
    options = {
        "strict": True,
        "target": "es2022",
        "module": "nodenext",
        "moduleResolution": "nodenext",
        "skipLibCheck": True,  # those of others; ours is no .d.ts, and is checked
        "types": ["node"],
    }
    config = {"compilerOptions": options, "files": ["submit.ts", "api.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config))
    (tmp_path / "submit.ts").write_text(SCRIPT.replace("./api", "./api.js"))
    run(str(bin / "tsc"), "-p", "tsconfig.json", folder=tmp_path)
    first, second = run(node, "submit.js", folder=tmp_path, env=environment).splitlines()
    assert json.loads(first) == {"id": "default:from-typescript", "state": "queued", "task": "add"}
    assert "queue must be" in second


@pytest.mark.long(20)
def test_a_client_for_python_compiles_and_submits(
    environment: dict[str, str], description: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), folder=tmp_path)
    python = str(folder / "bin/python")
    pip = (sys.executable, "-m", "pip", "--python", python)  # its own would take longer to install
    options = ("-q", "--disable-pip-version-check", "--no-compile")
    fetched(*pip, "install", *options, "openapi-python-client>=0.26", folder=tmp_path)
    said = run(
        str(folder / "bin/openapi-python-client"),
        *("generate", "--path", description.name, "--meta", "none"),
        *("--output-path", "fairlead_client"),
        folder=tmp_path,
    )
    # Of bodies it knows JSON and forms only; the rest is there.
    problems = [line for line in said.splitlines() if line.startswith(("WARNING", "Unable"))]
    assert problems in ([], ["WARNING parsing POST /api/v1/tasks/batch within tasks."]), said
    (tmp_path / "caller.py").write_text(CALLER)
    lines = run(python, "-W", "error", "caller.py", folder=tmp_path, env=environment).splitlines()
    assert lines == ["default:from-python queued", "queue"]
