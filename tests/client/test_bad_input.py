"""Bad input: a typed error that names the value, and nothing written."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fairlead import (
    DependencyCycle,
    Fairlead,
    InvalidInput,
    InvalidName,
    InvalidOption,
    NotSerializable,
    TaskCall,
    TooLarge,
    UnknownDependency,
    UnknownPriority,
    UnknownTask,
)
from fairlead.client import CallOptions, Sender, Snapshot
from fairlead.runtime.ids import new_id

Work = Sender[[Any], None]


class Opaque:
    pass


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def with_options(**options: Any) -> Callable[[Work], TaskCall[None]]:
    return lambda work: work.using(**options).call(1)


def with_argument(value: Any) -> Callable[[Work], TaskCall[None]]:
    return lambda work: work.call(value)


def depending_on_itself(work: Work) -> TaskCall[None]:
    return work.using(id="x", depends_on=["x"]).call(1)


BAD: list[tuple[str, Callable[[Work], TaskCall[None]], type[InvalidInput], str]] = [
    ("priority name", with_options(priority="urgent"), UnknownPriority, "'urgent'"),
    ("priority number", with_options(priority=17), UnknownPriority, "17"),
    ("priority bool", with_options(priority=True), UnknownPriority, "True"),
    ("priority function", with_options(priority=lambda _: "soon"), UnknownPriority, "'soon'"),
    ("delay negative", with_options(delay=-1), InvalidOption, "delay=-1"),
    ("delay nan", with_options(delay=math.nan), InvalidOption, "delay=nan"),
    ("delay text", with_options(delay="soon"), InvalidOption, "delay='soon'"),
    ("delay type", with_options(delay=[1]), InvalidOption, r"delay=\[1\]"),
    ("delay over", with_options(delay=timedelta(days=9999)), InvalidOption, "days=9999"),
    ("deadline negative", with_options(deadline=-5), InvalidOption, "deadline=-5"),
    ("timeout zero", with_options(timeout=0), InvalidOption, "timeout=0"),
    ("timeout none", with_options(timeout=None), InvalidOption, "timeout=None"),
    ("retention", with_options(retention="1y"), InvalidOption, "retention='1y'"),
    ("retries", with_options(max_retries=-1), InvalidOption, "max_retries=-1"),
    ("cost", with_options(cost=0), InvalidOption, "cost=0"),
    ("queue empty", with_options(queue=""), InvalidName, "queue ''"),
    ("queue space", with_options(queue="a b"), InvalidName, "queue 'a b'"),
    ("queue long", with_options(queue="q" * 65), InvalidName, "queue 'qqq"),
    ("tenant empty", with_options(tenant=""), InvalidName, "tenant ''"),
    ("tenant control", with_options(tenant="a\nb"), InvalidName, "a\\\\nb"),
    ("tenant long", with_options(tenant="ü" * 65), InvalidName, "tenant 'üüü"),
    ("tenant type", with_options(tenant=7), InvalidName, "tenant 7"),
    ("id colon", with_options(id="a:b"), InvalidName, "task id 'a:b'"),
    ("id empty", with_options(id=""), InvalidName, "task id ''"),
    ("id like ours", with_options(id=new_id()), InvalidName, "UUIDv7"),
    ("unique long", with_options(unique="k" * 300), InvalidName, "unique key 'kkk"),
    ("unique_for alone", with_options(unique_for=5), InvalidOption, "unique_for=5"),
    (
        "unique twice",
        with_options(unique="k", unique_for=5, unique_until="done"),
        InvalidOption,
        "unique_for=5",
    ),
    ("unique_until", with_options(unique="k", unique_until="x"), InvalidOption, "'x'"),
    ("limiter name", with_options(limiters=["a b"]), InvalidName, "limiter 'a b'"),
    ("limiter text", with_options(limiters="ab"), InvalidOption, "limiters='ab'"),
    ("limiters many", with_options(limiters=list("abcde")), TooLarge, "limiters is 5"),
    ("correlation", with_options(correlation_id="a\x00"), InvalidName, "correlation id"),
    ("policy", with_options(on_dependency_failure="shrug"), InvalidOption, "'shrug'"),
    ("depends text", with_options(depends_on="abc"), InvalidOption, "depends_on='abc'"),
    ("depends number", with_options(depends_on=[7]), InvalidOption, "depends_on=7"),
    ("depends no list", with_options(depends_on=7), InvalidOption, "depends_on=7"),
    ("depends name", with_options(depends_on=["a b"]), InvalidName, "task id 'a b'"),
    (
        "depends many",
        with_options(depends_on=[f"t{n}" for n in range(1_001)]),
        TooLarge,
        "depends_on is 1001 tasks",
    ),
    ("depends unknown", with_options(depends_on=["nope"]), UnknownDependency, "'default:nope'"),
    ("nan", with_argument(math.nan), NotSerializable, "nan is not a finite"),
    ("infinity", with_argument([{"a": math.inf}]), NotSerializable, "inf is not a finite"),
    ("opaque", with_argument(Opaque()), NotSerializable, "Opaque"),
    ("keys", with_argument({1: 2}), NotSerializable, "key of type int"),
    ("integer", with_argument(2**64), NotSerializable, "integer outside"),
    ("surrogate", with_argument("\ud800"), NotSerializable, "surrogates"),
    ("deep", with_argument(nested(65)), TooLarge, "levels deep; the limit is 64"),
    ("large", with_argument("x" * (1024 * 1024)), TooLarge, "the limit is 1048576 bytes"),
    ("arguments", lambda work: work.call(), InvalidInput, "missing a required argument"),  # type: ignore[call-arg]
    ("keyword", lambda work: work.call(1, b=2), InvalidInput, "argument 'b'"),  # type: ignore[call-arg]
]


@pytest.fixture
def app() -> Fairlead:
    return Fairlead("memory://")


@pytest.fixture
def work(app: Fairlead) -> Work:
    @app.task(name="work")
    def work(value: Any) -> None: ...

    sender: Work = work.using()
    return sender


async def counts(app: Fairlead) -> Snapshot:
    return msgspec.structs.replace(await app.asnapshot(), now=0.0)


@pytest.mark.parametrize(
    ("make", "error", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD]
)
async def test_bad_input_is_named_and_nothing_is_written(
    app: Fairlead,
    work: Work,
    make: Callable[[Work], TaskCall[None]],
    error: type[InvalidInput],
    words: str,
) -> None:
    await work.aenqueue("good")
    before = await counts(app)

    async def together() -> None:
        await app.aenqueue_many([work.call("good"), make(work)])

    with pytest.raises(error, match=words) as caught:
        await together()
    assert type(caught.value) is error
    if error is UnknownDependency:  # only the broker can know; what is good of a batch stands
        assert caught.value.__notes__[0].startswith("1 of 2 tasks were accepted")
        return
    assert await counts(app) == before
    with pytest.raises(error, match=words):
        app.enqueue_many([work.call("good"), make(work)])
    assert await counts(app) == before


def test_an_error_in_a_batch_says_which_call_it_is(app: Fairlead, work: Work) -> None:
    with pytest.raises(NotSerializable) as caught:
        app.enqueue_many([work.call(1), work.call(math.nan)])
    assert caught.value.__notes__ == ["in call 1, of task 'work'; none was enqueued"]


async def test_one_bad_call_is_refused_in_each_way_to_enqueue(app: Fairlead, work: Work) -> None:
    before = await counts(app)
    with pytest.raises(InvalidName):
        await work.using(queue="a b").aenqueue(1)
    with pytest.raises(InvalidName):
        work.using(queue="a b").enqueue(1)
    with pytest.raises(UnknownDependency):
        await work.using(depends_on=["nope"]).aenqueue(1)
    with pytest.raises(DependencyCycle, match="default:x -> default:x"):
        await depending_on_itself_alone(work)
    assert await counts(app) == before


async def depending_on_itself_alone(work: Work) -> None:
    await work.using(id="x", depends_on=["x"]).aenqueue(1)


async def test_a_cycle_is_refused_whole(app: Fairlead, work: Work) -> None:
    before = await counts(app)
    one = work.using(id="one", depends_on=["three"]).call(1)
    two = work.using(id="two", depends_on=[one]).call(2)
    three = work.using(id="three", depends_on=[two]).call(3)
    with pytest.raises(DependencyCycle) as cycle:
        await app.aenqueue_many([work.call(0), one, two, three])
    assert set(cycle.value.path) == {"default:one", "default:two", "default:three"}
    with pytest.raises(DependencyCycle, match="default:x -> default:x"):
        await app.aenqueue_many([depending_on_itself(work)])
    assert await counts(app) == before


async def test_a_call_that_was_never_enqueued_is_no_handle(app: Fairlead, work: Work) -> None:
    before = await counts(app)
    with pytest.raises(UnknownDependency):  # and does not count as completed
        await work.using(depends_on=[work.call(1)]).aenqueue(2)
    assert await counts(app) == before


def test_only_calls_of_tasks_of_this_app_are_enqueued(app: Fairlead, work: Work) -> None:
    with pytest.raises(InvalidInput, match=r"item 1 is str.*task\.call"):
        app.enqueue_many([work.call(1), "work"])  # type: ignore[arg-type]
    with pytest.raises(UnknownTask, match="'work' is not registered"):
        Fairlead("memory://").enqueue_many([work.call(1)])


def test_an_option_that_does_not_exist_is_named(work: Work) -> None:
    with pytest.raises(InvalidInput, match=r"'tenent' is no option.*did you mean tenant\?"):
        work.using(**CallOptions(tenent="acme"))  # type: ignore[typeddict-unknown-key]
    with pytest.raises(InvalidInput, match="'dealy' is no option"):
        work.call(1).using(dealy=5)  # type: ignore[call-arg]


def test_only_a_list_of_calls_is_enqueued(app: Fairlead, work: Work) -> None:
    with pytest.raises(InvalidInput, match="TaskCall is not a list of calls"):
        app.enqueue_many(work.call(1))  # type: ignore[arg-type]
