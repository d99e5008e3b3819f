"""``fairlead doctor``: is the broker fit for its tasks, and is what it stores sound?"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from fairlead.broker import Store, address_of
from fairlead.broker.views import Finding, Snapshot, TaskRecord, WorkerRecord
from fairlead.cli.commands import Command, talk
from fairlead.cli.target import named, store_of, url_option
from fairlead.model.lifecycle import State
from fairlead.model.message import task_name

__all__ = ("doctor",)

_CODES = {"ok": 0, "warn": 1, "fail": 2}
_MOST_QUEUES = 50  # that are listed one by one
_MOST_FINDINGS = 100  # of the audit that are shown
_PAGE, _PAGES = 500, 4  # tasks that are looked at for unroutable ones


@click.command(
    cls=Command,
    section="Look after it",
    examples=(
        ("fairlead doctor", "the broker of FAIRLEAD_URL or fairlead.toml"),
        ("fairlead doctor --url redis://localhost", "another one"),
        ("fairlead doctor --audit", "also walk through everything that is stored"),
        ("fairlead doctor --audit --json > health.json", "for programs"),
    ),
)
@url_option
@click.option("--audit", is_flag=True, help="Walk through all that is stored and check it.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(url: str | None, audit: bool, as_json: bool) -> int:
    """Look whether the broker can be trusted with tasks, and whether somebody works on them.

    Every line says ok, warn or fail, and what to do. The audit reads every key, in small steps
    that hold up nobody, and needs about a kilobyte of memory here for each task; what moves
    meanwhile is looked at twice. Exit codes: 0 all is fine, 1 there are warnings, 2 something
    failed or the audit found something (2 is wrong usage as well), 3 the broker cannot be reached.
    """
    url, source = named(url)
    findings, wrong = asyncio.run(_look(store_of(url), audit=audit))
    text = f"{address_of(url)} (from {source})"
    findings = [Finding(name="broker", status="ok", text=text), *findings]
    if as_json:
        click.echo(json.dumps(_report(findings, wrong)))
    else:
        _show(findings, wrong)
    return _CODES[_worst(findings, wrong)]


async def _look(store: Store, *, audit: bool) -> tuple[list[Finding], list[str] | None]:
    """All findings, and those of the audit if it was wanted."""
    log = logging.getLogger("fairlead")
    level = log.level
    log.setLevel(logging.ERROR)  # what it would warn of is a finding here
    try:
        findings = await store.diagnose()
        workers = await store.workers()
        findings += _workers(await store.snapshot(), workers)
        findings += await _unroutable(store, workers)
        wrong = None
        if audit:
            shown = sys.stderr.isatty()
            wrong = await store.audit(progress=_progress if shown else None)
            if shown:
                click.echo("\r\033[K", nl=False, err=True)
        return findings, wrong
    finally:
        await store.close()
        log.setLevel(level)


def _progress(keys: int) -> None:
    click.echo(f"\r{keys:,} keys read", nl=False, err=True)


def _workers(snapshot: Snapshot, workers: list[WorkerRecord]) -> Iterator[Finding]:
    """Who works, and on which queues that have something to do."""
    running = sum(worker.running for worker in workers)
    text = f"{len(workers)} heard of in the last 15 seconds, {running} tasks run"
    waiting = {name: queue for name, queue in snapshot.queues.items() if queue.depth}
    yield Finding(name="workers", status="ok", text=text)
    for name, queue in sorted(waiting.items())[:_MOST_QUEUES]:
        served = sum(name in worker.queues for worker in workers)
        text = f"{queue.depth:,} wait ({queue.ready:,} ready), {served} workers serve it"
        if not served:
            hint = "start a worker for it, or purge it if nobody wants its tasks"
            yield Finding(name=f"queue {name}", status="warn", text=text, hint=hint)
        elif queue.paused:
            hint = "resume it when its tasks may run"
            text = f"paused; {text}"
            yield Finding(name=f"queue {name}", status="warn", text=text, hint=hint)
        else:
            yield Finding(name=f"queue {name}", status="ok", text=text)
    if len(waiting) > _MOST_QUEUES:
        text = f"{len(waiting) - _MOST_QUEUES:,} more have tasks that wait"
        yield Finding(name="queues", status="ok", text=text)


async def _unroutable(store: Store, workers: list[WorkerRecord]) -> list[Finding]:
    """Tasks that were handed back because no worker knew them, by name."""
    found: Counter[str] = Counter()
    looked = 0
    for state in (State.RETRYING, State.DEAD):
        cursor: str | None = None
        for _ in range(_PAGES):
            page = await store.page(state=state, cursor=cursor, limit=_PAGE)
            looked += len(page.tasks)
            found.update(_called(task) for task in page.tasks if task.reason == "unroutable")
            cursor = page.cursor
            if cursor is None:
                break
    if not found:
        return []
    known = {name for worker in workers for name in worker.tasks}
    rows = []
    for name, count in found.most_common(_MOST_QUEUES):
        text = f"{count:,} of the {looked:,} tasks looked at were handed back as unroutable"
        hint = "start a worker whose app registers this task; it is tried again for a day"
        if name in known:
            hint = "a worker knows the name, but perhaps an older version: deploy the newer one"
        rows.append(Finding(name=f"task {name}", status="warn", text=text, hint=hint))
    return rows


def _called(task: TaskRecord) -> str:
    return task_name(task.message.body) or "(unreadable)"


def _worst(findings: list[Finding], wrong: list[str] | None) -> str:
    statuses = [finding.status for finding in findings]
    return "fail" if wrong else max(statuses, key=_CODES.__getitem__, default="ok")


def _report(findings: list[Finding], wrong: list[str] | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "status": _worst(findings, wrong),
        "checks": [msgspec.structs.asdict(finding) for finding in findings],
    }
    if wrong is not None:
        more = max(len(wrong) - _MOST_FINDINGS, 0)
        report["audit"] = {"findings": wrong[:_MOST_FINDINGS], "more": more}
    return report


def _show(findings: list[Finding], wrong: list[str] | None) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        click.echo(f"{_painted(finding.status)}  {finding.name:{width}}  {finding.text}")
        if finding.hint:
            click.echo(f"      {'':{width}}  {finding.hint}")
    if wrong is None:
        return
    for text in wrong[:_MOST_FINDINGS]:
        click.echo(f"{_painted('fail')}  {'audit':{width}}  {text}")
    if len(wrong) > _MOST_FINDINGS:
        talk(f"{len(wrong) - _MOST_FINDINGS:,} more findings are not shown")
    if not wrong:
        click.echo(f"{_painted('ok')}  {'audit':{width}}  everything that is stored is sound")


def _painted(status: str) -> str:
    color = {"ok": "green", "warn": "yellow", "fail": "red"}[status]
    return click.style(f"{status:4}", fg=color)
