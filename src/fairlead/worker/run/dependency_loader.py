"""Before the handler starts: read what its dependencies returned, and put it where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fairlead.broker import Inspector
from fairlead.broker.records import TaskRecord
from fairlead.model.argument_packing import unpack
from fairlead.model.codecs import CodecError, Codecs, codec_of, undecoded
from fairlead.model.errors import BrokerError, TaskError
from fairlead.model.message import ErrorInfo, task_name
from fairlead.model.result_refs import Output, with_results
from fairlead.model.retries import Failed, Outcome, Released, Unroutable
from fairlead.model.signals import Reject
from fairlead.runtime.batcher import Batcher
from fairlead.worker.handler_router import Assignment
from fairlead.worker.inflight import Kind
from fairlead.worker.run.attempt import Attempt, ExecutionEnv
from fairlead.worker.run.context import Context
from fairlead.worker.run.error_text import describe
from fairlead.worker.run.results import Ended, Results, error_of

MAX_RESULTS = 16 * 1024 * 1024  # bytes of results that one attempt reads
_AT_ONCE = 32  # tasks in one call: each may bring 2 MiB
_PAUSE = 0.5  # seconds before a task goes back because the broker does not answer


class DependencyLoader:
    """Reads ended tasks for all attempts of a worker, those of one moment in one call."""

    def __init__(self, store: Inspector, codecs: Codecs | None = None) -> None:
        self._store = store
        self._codecs = codecs
        self._batcher: Batcher[tuple[str, str], Ended] = Batcher(self._flush, limit=_AT_ONCE)

    async def load(self, tenant: str, depends_on: Sequence[tuple[str, ...]]) -> dict[str, Ended]:
        """How these tasks stand, by id, with results that are decoded.

        Raises Reject if they returned more than one attempt may read, CodecError for a result whose
        codec is not here.
        """
        found: dict[str, Ended] = {}
        size = 0
        for start in range(0, len(depends_on), _AT_ONCE):
            part = depends_on[start : start + _AT_ONCE]
            ended = await asyncio.gather(*(self._batcher.submit((tenant, id)) for id, *_ in part))
            for (id, name, *_), each in zip(part, ended, strict=True):
                known = each if each.task or not name else replace(each, task=name)
                if known.result is not None:
                    known = replace(known, result=self._decoded(id, known.result))
                found[id] = known
                size += len(known.result or b"")
                if size > MAX_RESULTS:
                    break
            if size > MAX_RESULTS:
                raise Reject(
                    f"the {len(depends_on)} tasks that it depends on returned more than "
                    f"{MAX_RESULTS // 2**20} MiB, which one attempt may read; return less from "
                    "them, or leave it as XCom values and pull what is needed"
                )
        return found

    def _decoded(self, id: str, result: bytes) -> bytes:
        what = f"the result of task {id!r}"
        if self._codecs is not None:
            return self._codecs.decode(result, what)
        if (codec := codec_of(result)) is not None:
            raise undecoded(what, codec)
        return result

    async def _flush(self, wanted: list[tuple[str, str]]) -> list[Ended]:
        records = await self._store.find([id for _, id in wanted], parts="result")
        return [_ended(tenant, record) for (tenant, _), record in zip(wanted, records, strict=True)]


def _ended(tenant: str, record: TaskRecord | None) -> Ended:
    if record is None or record.message.tenant != tenant:  # results stay within a tenant
        return Ended()
    error = record.error
    return Ended(
        task=task_name(record.message.body),
        state=record.state,
        result=record.result,
        reason=record.reason,
        error="" if error is None else f"{error.type}: {error.message}",
    )


class LoadingAttempt(Attempt):
    """An attempt whose handler waits for results; it has a slot, and can be taken back."""

    __slots__ = ("_begin", "_loader", "_task", "kind")

    def __init__(
        self,
        assignment: Assignment,
        context: Context,
        env: ExecutionEnv,
        loader: DependencyLoader,
        begin: Callable[[LoadingAttempt], None],
    ) -> None:
        super().__init__(assignment, context, env)
        self.kind: Kind = "loop" if assignment.spec.is_async else "thread"
        self._loader = loader
        self._begin = begin  # called when all is there: the handler may start
        self._task = env.loop.create_task(self._run(), name="results")

    async def _run(self) -> None:
        outcome: Outcome
        try:
            await self._load()
        except Reject as error:
            outcome = Failed(error, ErrorInfo("Reject", str(error)))
        except CodecError as error:
            outcome = Unroutable(ErrorInfo("CodecError", str(error)))  # nothing has run
        except BrokerError:
            await asyncio.sleep(_PAUSE)  # it would come back at once
            outcome = Released()  # not the task's fault
        except asyncio.CancelledError:
            outcome = Released()  # taken back, which has finished it already, or by somebody else
        except Exception as error:  # noqa: BLE001 - whatever it is, the attempt must not hang
            outcome = Failed(error, describe(error))
        else:
            if not self.over:
                self.over = True
                self._begin(self)
            return
        if not self.over:
            self._finish(outcome)

    async def _load(self) -> None:
        assignment, tenant = self.assignment, self.lease.message.tenant
        wanted, moved = assignment.depends_on, assignment.moved
        if not assignment.takes_context:  # then only what stands in the arguments
            named = {moved.get(id, id) for id in assignment.outputs}
            wanted = tuple(each for each in wanted if each[0] in named)
        ended = await self._loader.load(tenant, wanted)
        self.context._results = Results(tenant, ended)
        if assignment.outputs:

            def result(output: Output) -> object:
                return _result(output, ended.get(moved.get(output.id, output.id), Ended()))

            assignment.args = with_results(assignment.args, result)
            assignment.kwargs = with_results(assignment.kwargs, result)

    def _withdraw(self) -> bool:
        self._task.cancel()
        return True

    def _stack(self) -> str:
        return "  reading what its dependencies returned\n"

    def _let_go(self) -> None:
        self._task.cancel()


def _result(output: Output, ended: Ended) -> object:
    """The value of an output; without one the task can never run as it was called."""
    error: TaskError | None = error_of(output.id, ended)
    if error is not None:
        state = "gone" if ended.state is None else str(ended.state)
        raise Reject(f"an argument is the output of task {output.id!r}, which is {state}: {error}")
    return None if ended.result is None else unpack(ended.result)
