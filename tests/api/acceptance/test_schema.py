"""schemathesis over the whole description: good data and bad, all checks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.api.http.mount import Connection, Receive, Send
from fairlead.api.openapi import document
from tests.api.acceptance.world import World, opened_world
from tests.support.fair import EXAMPLES

if TYPE_CHECKING:  # it is imported by the process that runs these tests, not by all that collect
    import schemathesis

_IN_MAKE_TEST = {
    "GET /api/v1/tasks/{id}/explain",
    "PATCH /api/v1/tenants/{tenant}",
    "POST /api/v1/tasks",
    "POST /api/v1/workers/{id}/stop",
}
# Of a path in the description, what is no method.
_SHARED = {"parameters", "summary", "description", "servers", "$ref"}


class Application:
    """The server of the world that the tests of this file share, once there is one."""

    world: World | None = None
    calls = 0

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "lifespan":  # that of a client: the server outlives it
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        assert self.world is not None
        self.calls += 1  # from many places: one is soon told that it guesses too often
        connection["client"] = (
            f"10.{self.calls >> 16}.{self.calls >> 8 & 255}.{self.calls & 255}",
            1,
        )
        server = self.world.api.server
        await server(connection, receive, send)
        # Each call has a loop of its own: what was begun beside it has to end in it, too.
        await asyncio.gather(*server.service._tokens._tasks)


APPLICATION = Application()


def is_tried(label: str) -> bool:
    """Whether an operation is among those of a run: some of them in `make test`."""
    return EXAMPLES >= 1 or label in _IN_MAKE_TEST


OPERATIONS = [
    f"{method.upper()} {path}"
    for path, item in document()["paths"].items()
    for method in item
    if method not in _SHARED
]


# Those that read come first: what the others leave behind makes long answers, and schemathesis
# looks at each row of them.
TRIED: list[str] = [each for each in OPERATIONS if is_tried(each)]
READS_FIRST = sorted(TRIED, key=lambda each: not each.startswith("GET "))


class Token:
    """Puts a token that may do all into each request, unless a check leaves it out."""

    text = ""

    def get(self, case: schemathesis.Case[Any], context: schemathesis.AuthContext) -> str:
        """What ``set`` is given."""
        return self.text

    def set(
        self, case: schemathesis.Case[Any], data: str, context: schemathesis.AuthContext
    ) -> None:
        """Put it in."""
        case.headers["Authorization"] = data


@pytest.fixture(scope="module")
def whole() -> schemathesis.BaseSchema:
    """The description, as schemathesis reads it."""
    import schemathesis
    from schemathesis.checks import load_all_checks
    from schemathesis.config import (
        GenerationConfig,
        ProjectConfig,
        ProjectsConfig,
        SchemathesisConfig,
    )

    load_all_checks()
    generation = GenerationConfig(max_examples=max(2, round(30 * EXAMPLES)), deterministic=True)
    config = SchemathesisConfig(
        projects=ProjectsConfig(default=ProjectConfig(generation=generation)),
    )
    whole = schemathesis.openapi.from_dict(dict(document()), config=config)
    whole.app = APPLICATION
    return whole


@pytest.fixture(scope="module")
def orderly(whole: schemathesis.BaseSchema) -> Iterator[None]:
    """Collect garbage between calls only, and not in what was imported before.

    Each call has an event loop of its own; what is left of it may log a traceback when it is
    collected, which parses source. Before Python 3.11.9 and 3.12.3 that is an error of the
    interpreter if it happens while Hypothesis is parsing source, too.
    """
    gc.collect()
    gc.freeze()  # schemathesis is large, and would be looked through each time
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def world(orderly: None) -> Iterator[World]:
    with asyncio.Runner() as runner:
        opened = opened_world(settings={"hosts": ("testserver",)})
        world = APPLICATION.world = runner.run(opened.__aenter__())
        Token.text = runner.run(world.api.token())["authorization"]
        yield world
        runner.run(opened.__aexit__(None, None, None))


@pytest.mark.filterwarnings("ignore:Skipped test cases:UserWarning")  # lines are tried elsewhere
@pytest.mark.parametrize("label", READS_FIRST)
def test_every_operation_keeps_to_its_description(
    label: str, whole: schemathesis.BaseSchema, world: World
) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    def keeps_to_it(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(excluded_checks=[positive_data_acceptance])
        if APPLICATION.calls % 50 == 0:
            gc.collect()

    before = APPLICATION.calls
    run_one(whole, label, keeps_to_it)
    assert APPLICATION.calls > before


def run_one(
    whole: schemathesis.BaseSchema, label: str, check: Callable[[schemathesis.Case[Any]], None]
) -> None:
    """Run a check with all cases of one operation, as the plugin for pytest does.

    The plugin itself would be loaded by every process and make all cases of all operations there.
    """
    from schemathesis.core.failures import FailureGroup, as_reported_failure
    from schemathesis.core.result import Ok
    from schemathesis.generation.hypothesis.builder import (
        InvalidHeadersExampleMark,
        MissingPathParameters,
    )
    from schemathesis.generation.hypothesis.reporting import ignore_hypothesis_output
    from schemathesis.pytest.lazy import get_all_tests

    one = whole.include(name=label)
    one.auth()(Token)
    [built] = get_all_tests(schema=one, test_func=check, settings=None, given_kwargs=None)
    assert isinstance(built, Ok)
    _, run = built.ok()
    try:
        with ignore_hypothesis_output():
            run()
    except FailureGroup as failures:
        raise as_reported_failure(failures) from None
    assert InvalidHeadersExampleMark.get(run) is None
    assert MissingPathParameters.get(run) is None


def test_every_operation_of_the_description_is_among_these(
    whole: schemathesis.BaseSchema,
) -> None:
    from schemathesis.core.result import Ok

    found = whole.get_all_operations()
    assert [isinstance(each, Ok) and each.ok().label for each in found] == OPERATIONS
