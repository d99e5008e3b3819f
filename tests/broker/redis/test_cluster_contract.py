"""A part of the contract on one shard of a real cluster: verbs with many keys, blocking, time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.broker.redis import RedisBroker
from tests.broker.conformance.test_dependencies import (  # noqa: F401 - they run here as well
    test_a_fan_in_waits_for_the_last_of_two_steps,
    test_a_task_is_released_when_its_last_dependency_completes,
    test_both_directions_of_a_dependency_can_be_seen,
)
from tests.broker.conformance.test_due import (  # noqa: F401 - they run here as well
    test_tasks_of_a_tenant_are_promoted_in_the_order_of_time,
)
from tests.broker.conformance.test_enqueue import (  # noqa: F401 - they run here as well
    test_the_items_of_a_batch_are_carried_out_in_order,
    test_up_to_200_tenants_are_taken_in,
    test_up_to_500_tasks_are_taken_in,
)
from tests.broker.conformance.test_fairness import (  # noqa: F401 - they run here as well
    test_equal_weights_take_turns,
)
from tests.broker.conformance.test_leases import (  # noqa: F401 - they run here as well
    test_a_beat_tells_which_of_the_named_leases_are_lost,
    test_at_most_a_step_is_given_back_in_a_call,
    test_every_write_under_the_lease_is_applied,
    test_sweeps_without_a_silence_end_what_is_over_and_nothing_else,
    test_the_third_crash_in_a_row_is_poison,
)
from tests.broker.redis import test_cluster as clusters
from tests.support.servers import Running
from tests.support.store import NOW, Client

nodes, url = clusters.nodes, clusters.url


@pytest.fixture
async def broker(nodes: list[Running], url: str) -> AsyncIterator[RedisBroker]:
    for node in nodes:
        node.admin("FLUSHALL")
    store = RedisBroker(url, shard="a", test_clock=True)
    try:
        yield store
        assert await store.audit(now=NOW) == []
    finally:
        await store.close()


@pytest.fixture
def c(broker: RedisBroker) -> Client:
    return Client(broker, "w1")
