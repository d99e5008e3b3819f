"""``fairlead doctor``: is the broker fit for its tasks, and is what it stores sound?"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.common.broker_option import broker_url, quiet, store_of, url_option
from fairlead.cli.common.commands import Command, talk
from fairlead.cli.common.output import print_json
from fairlead.model.states import State

if TYPE_CHECKING:
    from fairlead.broker import Store
    from fairlead.broker.records import Finding, Mended, Snapshot, TaskRecord, WorkerRecord

_CODES = {"ok": 0, "warn": 1, "fail": 2}
_MOST_QUEUES = 50  # that are listed one by one
_MOST_FINDINGS = 100  # of the audit that are shown
_PAGE, _PAGES = 500, 4  # tasks that are looked at for unroutable ones


@click.command(
    cls=Command,
    examples=(
        ("fairlead doctor", "the broker of FAIRLEAD_URL or fairlead.toml"),
        ("fairlead doctor --url redis://localhost", "another one"),
        ("fairlead doctor --audit", "also walk through everything that is stored"),
        ("fairlead doctor --audit --json > health.json", "for programs"),
        ("fairlead doctor --repair", "show which indexes would be built anew, and ask"),
        ("fairlead doctor --repair --yes", "build them anew, without a question"),
    ),
)
@url_option
@click.option("--audit", is_flag=True, help="Walk through all that is stored and check it.")
@click.option("--repair", is_flag=True, help="Build damaged indexes anew; first show which.")
@click.option("--yes", is_flag=True, help="With --repair: do it, without a question.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def doctor(url: str | None, audit: bool, repair: bool, yes: bool, as_json: bool) -> int:
    """Look whether the broker can be trusted with tasks, and whether somebody works on them.

    Every line says ok, warn or fail, and what to do. The audit reads every key, in small steps
    that hold up nobody, and needs about a kilobyte of memory here for each task; what moves
    meanwhile is looked at twice. Exit codes: 0 all is fine, 1 there are warnings, 2 something
    failed or the audit found something (2 is wrong usage as well), 3 the broker cannot be reached.

    A repair builds indexes anew from the records of tasks: lines, who may run, counts, due times,
    leases, shelves. It shows what it would do, asks on a terminal, and audits what it did. Workers
    may go on.
    """
    from fairlead.broker import address_of
    from fairlead.broker.records import Finding

    if yes and not repair:
        raise click.UsageError("--yes belongs to --repair")
    url, source = broker_url(url)
    ask = repair and not yes and not as_json and sys.stdin.isatty()
    examined = _examine(url, audit=audit, repair=repair, apply=yes, ask=ask)
    text = f"{address_of(url)} (from {source})"
    examined.findings.insert(0, Finding(name="broker", status="ok", text=text))
    if as_json:
        print_json(_report(examined))
    else:
        _show(examined)
    return _CODES[_worst(examined)]


class _Examined:
    """What was found: checks, and if they were wanted the audit and the repair."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        self.wrong: list[str] | None = None
        self.mended: list[Mended] | None = None


def _examine(url: str, *, audit: bool, repair: bool, apply: bool, ask: bool) -> _Examined:
    """Look, and if somebody is to be asked first, look again at what to do then.

    The question is put where no event loop runs: one would keep Ctrl-C to itself.
    """
    import asyncio

    def look(*, audit: bool, repair: bool, apply: bool) -> _Examined:
        with quiet():  # what would be warned of is a finding here
            return asyncio.run(_look(store_of(url), url, audit=audit, repair=repair, apply=apply))

    if not ask:
        return look(audit=audit, repair=repair, apply=apply)
    examined = look(audit=False, repair=True, apply=False)
    to_do = [each for each in examined.mended or () if each.left]
    if to_do and _agreed(to_do):
        return look(audit=audit, repair=True, apply=True)
    if audit:
        examined.wrong = look(audit=True, repair=False, apply=False).wrong
    return examined


def _agreed(to_do: list[Mended]) -> bool:
    """Show what a repair would do, and ask whether it may."""
    for each in to_do:
        click.echo(f"{each.left:,} {each.text}")
    return click.confirm("Mend this now?", err=True)


async def _look(store: Store, url: str, *, audit: bool, repair: bool, apply: bool) -> _Examined:
    """All findings, and those of the repair and the audit if they were wanted."""
    from fairlead.cli.doctor_routes import former_servers

    try:
        findings = [*await store.diagnose(), *await former_servers(store, url)]
        workers = await store.workers()
        findings += _workers(await store.snapshot(tenants=False), workers)
        findings += await _unroutable(store, workers)
        found = _Examined(findings)
        if repair:
            with _shown() as progress:
                found.mended = await store.repair(apply=apply, progress=progress)
        if audit or (found.mended and any(each.done for each in found.mended)):
            with _shown() as progress:
                found.wrong = await store.audit(progress=progress)
        return found
    finally:
        await store.close()


@contextmanager
def _shown() -> Iterator[Callable[[int], None] | None]:
    """Tell on a terminal how far a walk is, and clean up behind it."""
    shown = sys.stderr.isatty()
    yield _progress if shown else None
    if shown:
        click.echo("\r\033[K", nl=False, err=True)


def _progress(keys: int) -> None:
    click.echo(f"\r{keys:,} keys read", nl=False, err=True)


def _workers(snapshot: Snapshot, workers: list[WorkerRecord]) -> Iterator[Finding]:
    """Who works, and on which queues that have something to do."""
    from fairlead.broker.records import Finding

    running = sum(worker.running for worker in workers)
    now = "1 task is running" if running == 1 else f"{running} tasks are running"
    text = f"{len(workers)} heard of in the last 15 seconds, {now}"
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
    from fairlead.broker.records import Finding

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
    from fairlead.model.message import task_name

    return task_name(task.message.body) or "(unreadable)"


def _worst(examined: _Examined) -> str:
    statuses = [finding.status for finding in examined.findings]
    left = any(each.left for each in examined.mended or ())
    if examined.wrong or left:
        return "fail"
    if any(each.busy for each in examined.mended or ()):
        statuses.append("warn")
    return max(statuses, key=_CODES.__getitem__, default="ok")


def _report(examined: _Examined) -> dict[str, Any]:
    wrong = examined.wrong
    report: dict[str, Any] = {
        "status": _worst(examined),
        "checks": examined.findings,
    }
    if examined.mended is not None:
        report["repair"] = examined.mended
    if wrong is not None:
        more = max(len(wrong) - _MOST_FINDINGS, 0)
        report["audit"] = {"findings": wrong[:_MOST_FINDINGS], "more": more}
    return report


def _show(examined: _Examined) -> None:
    findings, wrong = examined.findings, examined.wrong
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        click.echo(f"{_painted(finding.status)}  {finding.name:{width}}  {finding.text}")
        if finding.hint:
            click.echo(f"      {'':{width}}  {finding.hint}")
    _show_repair(examined.mended, width)
    if wrong is None:
        return
    for text in wrong[:_MOST_FINDINGS]:
        click.echo(f"{_painted('fail')}  {'audit':{width}}  {text}")
    if len(wrong) > _MOST_FINDINGS:
        talk(f"{len(wrong) - _MOST_FINDINGS:,} more findings are not shown")
    if not wrong:
        click.echo(f"{_painted('ok')}  {'audit':{width}}  everything that is stored is sound")


def _show_repair(mended: list[Mended] | None, width: int) -> None:
    if mended is None:
        return
    for each in mended:
        if each.done:
            click.echo(f"{_painted('ok')}  {'repair':{width}}  {each.done:,} {each.text}")
        if each.left:
            text = f"to do: {each.left:,} {each.text}"
            click.echo(f"{_painted('fail')}  {'repair':{width}}  {text}")
    done = any(each.done for each in mended)
    if any(each.left for each in mended):
        hint = "there is more to do: repeat it" if done else "`--repair --yes` does it"
        click.echo(f"      {'':{width}}  {hint}")
    busy = ", ".join(f"{each.busy:,} {each.kind}s" for each in mended if each.busy)
    if busy:
        text = f"not compared with their tasks, because work went on in them: {busy}"
        click.echo(f"{_painted('warn')}  {'repair':{width}}  {text}")
        click.echo(f"      {'':{width}}  if their counts are wrong, repeat it while they rest")
    if not any(each.done or each.left for each in mended):
        click.echo(f"{_painted('ok')}  {'repair':{width}}  there is nothing to mend")


def _painted(status: str) -> str:
    color = {"ok": "green", "warn": "yellow", "fail": "red"}[status]
    return click.style(f"{status:4}", fg=color)
