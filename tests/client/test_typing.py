"""What a type checker sees of the public interface."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.test_readme import blocks

pytestmark = pytest.mark.slow  # mypy reads everything anew: with `make types` in `make check`

PROGRAM = """\
from typing import Any, NoReturn

from fairlead import Context, Fairlead
from fairlead.testing import Kit

app = Fairlead("memory://", priorities={"urgent": "critical"})

@app.task
async def send(to: str, subject: str = "hi") -> str:
    return to

@app.task(queue="numbers", max_retries=5, timeout=30, retention="1h")
def double(n: int) -> int:
    return 2 * n

@app.task
def render(ctx: Context, n: int) -> bytes:
    return b""

@app.task(priority=lambda n: "high")
async def report(ctx: Context, n: int) -> list[int]:
    return [n]

@app.task
def refuse(n: int) -> NoReturn:
    raise ValueError(n)

@app.task
def read(n: int) -> list[Any]:
    return [n]

@app.task
def loose(a, b=1): # type: ignore[no-untyped-def]
    return a

@app.task
async def tick(ctx: Context) -> None: ...

async def program() -> None:
    reveal_type(await send("a"))                    # R: str
    reveal_type(refuse)                             # R: SyncTask[[n: int], Any]
    reveal_type(read(1))                            # R: list[Any]
    reveal_type(tick.enqueue())                     # R: Handle[None]
    reveal_type(loose.enqueue(1, 2))                # R: Any
    reveal_type(loose(1))                           # R: Any
    reveal_type(double(1))                          # R: int
    ctx = Kit(app).context()
    reveal_type(await report(ctx, 1))               # R: list[int]
    reveal_type(render(ctx, n=1))                   # R: bytes
    reveal_type(render.enqueue(1).result())         # R: bytes
    reveal_type(await send.aenqueue("a"))           # R: Handle[str]
    reveal_type(double.enqueue(1).result())         # R: int
    reveal_type(await report.enqueue(1).aresult())  # R: list[int]
    reveal_type(send.using(tenant="acme", delay="5m").enqueue("a", subject="b"))  # R: Handle[str]
    reveal_type(send.call("a").using(priority=1))   # R: TaskCall[str]
    reveal_type(await app.aenqueue_many(send.call(to) for to in "ab"))  # R: list[Handle[str]]
    reveal_type(double.call(double.call(1).output))  # R: TaskCall[int]
    double.enqueue(double.enqueue(1).output)
    flow = double.call(1) >> send.call("a")
    reveal_type(await (await app.aenqueue_flow(flow)).aresult())  # R: str
    reveal_type(app.enqueue_flow(double.call(1) << send.call("a")).result())  # R: int
    reveal_type(app.enqueue_flow([double.call(1)] >> send.call("a")).result())  # R: str
    reveal_type(app.enqueue_flow(flow >> [double.call(1), send.call("b")]).result())  # R: Any
    reveal_type(app.enqueue_flow([flow, double.call(2)]).result())  # R: Any
    reveal_type(app.flow("x").result())             # R: Any
    reveal_type(app.handle("x").state)              # R: State | OutboxState
    reveal_type(double.using(tx=object()).enqueue(1))  # R: Handle[int]
    await send.using(depends_on=[double.enqueue(1), send.call("a"), "id"]).aenqueue("a")
    await app.aconfigure_queue("mail", max_waiting=None, paused=True)
    async with app, app.worker(concurrency=10, queues=["mail"]):
        reveal_type(await app.drain())              # R: Drained

    await send.aenqueue(1)                # E: arg-type
    send.enqueue("a", subjekt="b")        # E: call-arg
    double.enqueue("1")                   # E: arg-type
    double.enqueue(send.enqueue("a").output)  # E: arg-type
    report.enqueue("x")                   # E: arg-type
    report(1)                             # E: call-arg|arg-type
    render(ctx, "x")                      # E: arg-type
    render.enqueue(ctx, 1)                # E: call-arg|arg-type
    await tick()                          # E: call-arg
    double.call(report.call(1).output)    # E: arg-type
    app.enqueue_flow(double.call(1))[send.call("a")].result().real  # E: attr-defined
    send.call()                           # E: call-arg
    send.using(delya=1)                   # E: call-arg
    send.using(delay=[1])                 # E: arg-type
    send.using(unique_until="finished")   # E: typeddict-item|arg-type
    app.configure_tenant("acme", weigth=2)  # E: call-arg
    text: str = double.enqueue(1).result()  # E: assignment
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says about both programs; once, for it reads all that they import."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "example.py").write_text(blocks()[0], encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull]
    done = subprocess.run(
        [*command, "program.py", "example.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.stdout + done.stderr


def test_the_first_example_of_the_readme_is_typed(checked: str) -> None:
    assert "errors in 1 file (checked 2 source files)" in checked  # and the one is not the example
    assert "example.py" not in checked


def test_arguments_options_and_results_are_typed(checked: str) -> None:
    found: dict[int, str] = {}
    for line in checked.splitlines():
        if match := re.match(r'program\.py:(\d+): note: Revealed type is "(.*)"', line):
            found[int(match[1])] = "R: " + re.sub(r"\b[a-z_]+\.(?:[a-z_]+\.)*", "", match[2])
        elif match := re.match(r"program\.py:(\d+): error: .*\[([a-z-]+)\]", line):
            found[int(match[1])] = f"E: {match[2]}"
        elif "error" in line and not line.startswith("Found"):
            found[-1] = line
    wanted = {
        number: line.split("  # ")[1]
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # " in line
    }
    assert {number: text for number, text in found.items() if number not in wanted} == {}
    for number, text in wanted.items():
        pattern = re.escape(text)
        if text.startswith("E"):
            pattern = pattern.replace(r"\|", "|E: ")
        assert re.fullmatch(pattern, found.get(number, "")), (
            number,
            text,
            found.get(number),
        )
