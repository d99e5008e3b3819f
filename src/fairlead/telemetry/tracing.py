"""Spans for OpenTelemetry around every enqueue and every attempt, joined by the task's headers.

Names and attributes are those of the semantic conventions for messaging. A span never holds
arguments, results or the text of an error: only of which class the error was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from fairlead.model.errors import InvalidInput
from fairlead.model.signals import Reject, Retry, Snooze
from fairlead.telemetry.optional_packages import needed

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

SENT_AT = "fairlead-sent-at"  # a header: unix seconds of the enqueue
_RECENT = 3_600.0  # seconds; what begins later is no part of the trace that enqueued it
_MAX_STATE = 512  # characters of the header tracestate, as W3C asks for at least

#: How an attempt ended, where that is no plain error.
_OUTCOMES: Mapping[type[BaseException], str] = {Retry: "retry", Reject: "reject", Snooze: "snooze"}


class Traced(Protocol):
    """What a span says of a task."""

    @property
    def task(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def correlation_id(self) -> str: ...


class Sending(Traced, Protocol):
    """A task that is about to be enqueued."""

    @property
    def headers(self) -> dict[str, str]: ...


class Attempt(Traced, Protocol):
    """An attempt that is about to begin."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def attempt(self) -> int: ...
    @property
    def generation(self) -> int: ...


class Traceable(Protocol):
    """An app: something that takes middleware."""

    @property
    def around_run(self) -> Callable[[Any], Any]: ...
    @property
    def around_enqueue(self) -> Callable[[Any], Any]: ...


_traced: WeakSet[Traceable] = WeakSet()


def trace(app: Traceable, *, tracer_provider: TracerProvider | None = None) -> None:
    """Trace the enqueues and attempts of an app; call it before other middleware is registered.

    ``tracer_provider`` is one of the OpenTelemetry SDK; without it the program's global one, also
    if that is set later. The extra ``otel`` brings the API; the program brings the SDK.
    """
    with needed("opentelemetry-api", "otel"):
        from opentelemetry.trace import get_tracer
    if app in _traced:
        raise InvalidInput("this app is traced already; its spans would come twice")
    _traced.add(app)
    spans = _Spans(get_tracer("fairlead", tracer_provider=tracer_provider))
    app.around_enqueue(spans.sending)
    app.around_run(spans.running)


class _Spans:
    """The middleware: a span around each enqueue and each attempt."""

    def __init__(self, tracer: Tracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = tracer
        # Not the program's propagators: baggage may hold anything, and would be stored.
        self._propagator = TraceContextTextMapPropagator()

    async def sending(self, enqueuing: Sending) -> AsyncIterator[None]:
        """A span of the producer, whose context travels with the task."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        span = self._tracer.start_span(
            f"send {enqueuing.queue}",
            kind=SpanKind.PRODUCER,
            attributes=_attributes("send", enqueuing),
        )
        # It is not made the current one: of a batch all would be each other's children.
        self._propagator.inject(enqueuing.headers, set_span_in_context(span))
        if len(enqueuing.headers.get("tracestate", "")) > _MAX_STATE:
            del enqueuing.headers["tracestate"]
        if "traceparent" in enqueuing.headers:
            enqueuing.headers[SENT_AT] = f"{time.time():.3f}"
        with _ended(span):
            yield

    async def running(self, attempt: Attempt) -> AsyncIterator[None]:
        """A span of the consumer, and the current one while the handler runs."""
        from opentelemetry.trace import Link, SpanKind, use_span

        context, sent = self._origin(attempt.headers)
        span = self._tracer.start_span(
            f"process {attempt.queue}",
            # A trace that goes on for days, or with every retry, is of no use to anybody.
            context=context if _is_first(attempt) else None,
            kind=SpanKind.CONSUMER,
            links=[] if sent is None else [Link(sent)],
            attributes={
                **_attributes("process", attempt),
                "fairlead.attempt": attempt.attempt,
                "fairlead.generation": attempt.generation,
            },
        )
        with (
            _ended(span),
            use_span(span, record_exception=False, set_status_on_exception=False),
        ):
            yield

    def _origin(self, headers: Mapping[str, str]) -> tuple[Context, SpanContext | None]:
        """The context that a task was enqueued in; None if it says nothing of one."""
        from opentelemetry.context import Context
        from opentelemetry.trace import get_current_span

        context = self._propagator.extract(dict(headers), Context())
        sent = get_current_span(context).get_span_context()
        return context, sent if sent.is_valid else None


def _is_first(attempt: Attempt) -> bool:
    """Whether it is the first attempt, soon after the enqueue."""
    if attempt.attempt > 1 or attempt.generation:
        return False
    try:
        return abs(time.time() - float(attempt.headers[SENT_AT])) <= _RECENT
    except (KeyError, ValueError):  # sent by something else, which may know best
        return True


def _attributes(operation: str, task: Traced) -> dict[str, str]:
    return {
        "messaging.system": "fairlead",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": task.queue,
        "messaging.message.id": task.id,
        "messaging.message.conversation_id": task.correlation_id,
        "fairlead.task": task.task,
        "fairlead.tenant": task.tenant,
    }


@contextmanager
def _ended(span: Span) -> Iterator[None]:
    """End the span with the block, and say of which class an error was."""
    from opentelemetry.trace import StatusCode

    try:
        yield
    except BaseException as error:
        kind = type(error)
        outcome = next((name for each, name in _OUTCOMES.items() if isinstance(error, each)), "")
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            outcome = "stopped"
        if outcome:
            span.set_attribute("fairlead.outcome", outcome)
        if outcome not in ("snooze", "stopped"):
            span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}")
            span.set_status(StatusCode.ERROR)
        raise
    finally:
        span.end()
