"""Spans across enqueue and run, as the SDK's exporter in memory gets them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fairlead import (
    Backoff,
    Context,
    Fairlead,
    InvalidInput,
    QueueFull,
    Reject,
    Snooze,
    correlation,
)
from fairlead.telemetry import tracing
from fairlead.telemetry.tracing import SENT_AT, trace
from tests.runtime.programs import run

SECRET = "hunter2-in-the-payload"


class Traced:
    """A traced app on a broker in memory, and its spans."""

    def __init__(self) -> None:
        self.app = Fairlead("memory://")
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        trace(self.app, tracer_provider=provider)

    def spans(self, kind: SpanKind | None = None) -> Sequence[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [span for span in found if kind is None or span.kind is kind]

    def one(self, kind: SpanKind) -> ReadableSpan:
        (span,) = self.spans(kind)
        return span

    def everything(self) -> str:
        return "".join(span.to_json() for span in self.spans())


@pytest.fixture
def traced() -> Traced:
    return Traced()


def context_of(span: ReadableSpan) -> otel.SpanContext:
    assert span.context is not None
    context: otel.SpanContext = span.context
    return context


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == context_of(parent).span_id


def links_to(span: ReadableSpan, other: ReadableSpan) -> bool:
    return [link.context.span_id for link in span.links] == [context_of(other).span_id]


@pytest.mark.parametrize("is_async", [True, False])
async def test_one_trace_goes_from_the_caller_through_the_queue_into_the_handler(
    traced: Traced, is_async: bool
) -> None:
    app, tracer = traced.app, traced.tracer

    def inner() -> None:
        with tracer.start_as_current_span("inside"):
            pass

    async def on_the_loop(ctx: Context, secret: str) -> None:
        await asyncio.sleep(0)
        inner()

    def in_a_thread(ctx: Context, secret: str) -> None:
        inner()

    handler: Any = on_the_loop if is_async else in_a_thread
    work = app.task(name="work", queue="mail")(handler)
    with tracer.start_as_current_span("request"), correlation("order-7"):
        handle = await work.using(tenant="shop").aenqueue(SECRET)
    await app.drain()
    spans = {span.name: span for span in traced.spans()}
    request, send = spans["request"], spans["send mail"]
    process, inside = spans["process mail"], spans["inside"]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert is_child(send, request)
    assert is_child(process, send)
    assert is_child(inside, process)
    assert len({context_of(span).trace_id for span in spans.values()}) == 1
    assert links_to(process, send)
    shared = {
        "messaging.system": "fairlead",
        "messaging.destination.name": "mail",
        "messaging.message.id": handle.id,
        "messaging.message.conversation_id": "order-7",
        "fairlead.task": "work",
        "fairlead.tenant": "shop",
    }
    assert attributes_of(send) == {
        **shared, "messaging.operation.name": "send", "messaging.operation.type": "send",
    }  # fmt: skip
    assert attributes_of(process) == {
        **shared, "messaging.operation.name": "process", "messaging.operation.type": "process",
        "fairlead.attempt": 1, "fairlead.generation": 0,
    }  # fmt: skip
    assert send.status.status_code is process.status.status_code is StatusCode.UNSET
    assert SECRET not in traced.everything()


def test_sync_code_hands_its_span_on(traced: Traced) -> None:
    @traced.app.task(name="work")
    def work() -> None: ...

    with traced.tracer.start_as_current_span("request"):
        work.enqueue()
    send = traced.one(SpanKind.PRODUCER)
    assert is_child(send, traced.spans(SpanKind.INTERNAL)[0])


async def test_each_task_of_a_batch_has_a_span_beside_the_others(traced: Traced) -> None:
    @traced.app.task(name="work")
    async def work(number: int) -> None: ...

    with traced.tracer.start_as_current_span("request"):
        await traced.app.aenqueue_many([work.call(number) for number in range(3)])
    await traced.app.drain()
    (request,) = traced.spans(SpanKind.INTERNAL)
    sends, runs = traced.spans(SpanKind.PRODUCER), traced.spans(SpanKind.CONSUMER)
    assert len(sends) == len(runs) == 3
    assert all(is_child(send, request) for send in sends)
    by_task = {attributes_of(send)["messaging.message.id"]: send for send in sends}
    for each in runs:
        assert links_to(each, by_task[attributes_of(each)["messaging.message.id"]])


async def test_a_retry_is_a_trace_of_its_own_that_links_to_the_enqueue(traced: Traced) -> None:
    @traced.app.task(name="work", backoff=Backoff(initial=0))
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError(SECRET)

    await work.aenqueue()
    await traced.app.drain()
    send = traced.one(SpanKind.PRODUCER)
    first, second = traced.spans(SpanKind.CONSUMER)
    assert is_child(first, send)
    assert first.status.status_code is StatusCode.ERROR
    assert attributes_of(first)["error.type"] == "builtins.ValueError"
    assert first.events == () and first.status.description is None  # noqa: PT018
    assert second.parent is None
    assert context_of(second).trace_id != context_of(send).trace_id
    assert links_to(first, send)
    assert links_to(second, send)
    assert attributes_of(second)["fairlead.attempt"] == 2
    assert second.status.status_code is StatusCode.UNSET
    assert SECRET not in traced.everything()


async def test_what_runs_long_after_its_enqueue_is_a_trace_of_its_own(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_RECENT", -1.0)

    @traced.app.task(name="work")
    async def work() -> None: ...

    await work.aenqueue()
    await traced.app.drain()
    process = traced.one(SpanKind.CONSUMER)
    assert process.parent is None
    assert links_to(process, traced.one(SpanKind.PRODUCER))


async def test_children_of_a_task_belong_to_its_trace(traced: Traced) -> None:
    @traced.app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.aenqueue(child.call())

    @traced.app.task(name="child")
    async def child() -> None: ...

    await parent.aenqueue()
    await traced.app.drain()
    assert len({context_of(span).trace_id for span in traced.spans()}) == 1
    names = {(span.name, attributes_of(span)["fairlead.task"]): span for span in traced.spans()}
    assert is_child(names["send default", "child"], names["process default", "parent"])


@pytest.mark.parametrize(
    ("raised", "outcome", "status"),
    [(Snooze(60), "snooze", StatusCode.UNSET), (Reject(SECRET), "reject", StatusCode.ERROR)],
)
async def test_a_signal_of_the_handler_is_told_as_such(
    traced: Traced, raised: BaseException, outcome: str, status: StatusCode
) -> None:
    @traced.app.task(name="work")
    async def work() -> None:
        raise raised

    await work.aenqueue()
    await traced.app.drain()
    span = traced.one(SpanKind.CONSUMER)
    assert attributes_of(span)["fairlead.outcome"] == outcome
    assert span.status.status_code is status
    assert SECRET not in traced.everything()


async def test_a_refused_enqueue_is_an_error_of_its_span(traced: Traced) -> None:
    @traced.app.task(name="work")
    async def work() -> None: ...

    await traced.app.aconfigure_queue("default", max_waiting=1)
    await work.aenqueue()
    with pytest.raises(QueueFull):
        await work.aenqueue()
    _, refused = traced.spans(SpanKind.PRODUCER)
    assert refused.status.status_code is StatusCode.ERROR
    assert attributes_of(refused)["error.type"] == "fairlead.model.errors.QueueFull"


async def test_a_cancelled_attempt_is_no_error(traced: Traced) -> None:
    began = asyncio.Event()

    @traced.app.task(name="work")
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    handle = await work.aenqueue()
    async with traced.app.worker():
        await began.wait()
        await handle.acancel()
        with pytest.raises(Exception, match="cancelled"):
            await handle.aresult(timeout=10)
    span = traced.one(SpanKind.CONSUMER)
    assert attributes_of(span)["fairlead.outcome"] == "stopped"
    assert span.status.status_code is StatusCode.UNSET


async def test_a_task_without_a_context_begins_a_trace(traced: Traced) -> None:
    headers = {"traceparent": "not one", SENT_AT: "soon"}

    @traced.app.around_enqueue
    async def spoil(enqueuing: Any) -> Any:
        enqueuing.headers.update(headers)
        yield

    @traced.app.task(name="work")
    async def work() -> None: ...

    await work.aenqueue()
    await traced.app.drain()
    span = traced.one(SpanKind.CONSUMER)
    assert span.parent is None
    assert not span.links


async def test_a_context_that_is_too_large_is_not_sent_on(traced: Traced) -> None:
    seen: list[str] = []

    @traced.app.task(name="work")
    async def work(ctx: Context) -> None:
        seen.extend(ctx.headers)

    state = otel.TraceState([(f"vendor{n}", "x" * 200) for n in range(5)])
    span = otel.NonRecordingSpan(
        otel.SpanContext(1, 1, is_remote=True, trace_flags=otel.TraceFlags(1), trace_state=state)
    )
    with otel.use_span(span):
        await work.aenqueue()
    await traced.app.drain()
    assert sorted(seen) == [SENT_AT, "traceparent"]


async def test_nothing_is_said_of_contexts_that_do_not_match(
    traced: Traced, caplog: pytest.LogCaptureFixture
) -> None:
    @traced.app.task(name="a")
    async def a() -> None:
        await asyncio.sleep(0)

    @traced.app.task(name="b")
    def b() -> None: ...

    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            await a.aenqueue()
            await b.aenqueue()
        await traced.app.drain()
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert len(traced.spans()) == 80
    assert not otel.get_current_span().get_span_context().is_valid


def test_an_app_is_traced_once(traced: Traced) -> None:
    with pytest.raises(InvalidInput, match="traced already"):
        trace(traced.app)


def test_without_the_package_the_error_names_the_extra() -> None:
    said = run(
        """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("opentelemetry", "prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from fairlead import Fairlead, InvalidInput
from fairlead.telemetry.metrics import export
from fairlead.telemetry.tracing import trace

for switch in (trace, export):
    try:
        switch(Fairlead("memory://"))
    except InvalidInput as error:
        print(error)
"""
    )
    assert 'pip install "fairlead[otel]"' in said
    assert 'pip install "fairlead[server]"' in said


def test_an_import_of_fairlead_brings_none_of_these_packages() -> None:
    said = run(
        """
import sys, fairlead

wanted = ("opentelemetry", "prometheus_client", "starlette", "uvicorn")
print([name for name in sys.modules if name.split(".")[0] in wanted])
"""
    )
    assert said.strip() == "[]"
