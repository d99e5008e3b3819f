"""Guards of metrics and traces: who may read them, what they may hold, and that they are true."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_API = "fairlead/api/metrics.py"
_API_TESTS = "tests/api/test_metrics.py::"
_TELEMETRY = "fairlead/telemetry/"
_TESTS = "tests/telemetry/"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "metrics of all tenants",
        "a token of one tenant, or without the scope, does not read figures of all",
        _API_TESTS + "test_metrics_are_for_tokens_that_may_read_all_tenants",
        (
            Mutant(_API, (("if access.tenant is not None:", "if False:"),)),
            Mutant(_API, (('        require(access, "read")\n', ""),)),
        ),
    ),
    Guard(
        "broker up",
        "a broker that is away is not said to be up",
        _API_TESTS + "test_a_broker_that_is_away_is_said_to_be_down_within_two_seconds",
        (Mutant(_API, (("up = hello is not None", "up = True"),)),),
    ),
    Guard(
        "names of tenants",
        "metrics do not name tenants unless they are told to",
        _API_TESTS + "test_tenants_are_named_only_on_request",
        (Mutant(_API, (('tenant if named else ""', "tenant"),)),),
    ),
    Guard(
        "bounded labels",
        "whoever chooses names does not choose how many rows there are",
        _TESTS + "test_counters.py::test_names_of_strangers_are_bounded",
        (
            Mutant(
                _TELEMETRY + "counters.py",
                (("    if len(known) >= most:\n        return OTHER\n", ""),),
            ),
        ),
    ),
    Guard(
        "cumulative buckets",
        "each bucket of a histogram holds all below it",
        _TESTS + "test_counters.py::test_rows_with_the_same_labels_are_added_up",
        (Mutant(_TELEMETRY + "metrics.py", (("accumulate(counts)", "counts"),)),),
    ),
    Guard(
        "figures of the dead",
        "what a child did is still counted when the child has ended",
        "tests/cli/test_worker_metrics.py::"
        "test_children_are_added_up_and_a_dead_one_is_not_forgotten",
        (Mutant("fairlead/worker/process/supervisor.py", (("self.ended.add(child)", "pass"),)),),
    ),
    Guard(
        "names of the machine",
        "a page that comes under a name of its own does not read the metrics of a worker",
        _TESTS + "test_metrics_server.py::test_on_loopback_a_foreign_name_is_refused",
        (Mutant(_TELEMETRY + "metrics_server.py", (("if self._local and", "if False and"),)),),
    ),
    Guard(
        "texts of errors",
        "a span does not hold the text of an error",
        _TESTS + "test_tracing.py::test_a_retry_is_a_trace_of_its_own_that_links_to_the_enqueue",
        (
            Mutant(
                _TELEMETRY + "tracing.py", (("record_exception=False", "record_exception=True"),)
            ),
        ),
    ),
    Guard(
        "traces of retries",
        "a retry does not go on with the trace of the enqueue",
        _TESTS + "test_tracing.py::test_a_retry_is_a_trace_of_its_own_that_links_to_the_enqueue",
        (
            Mutant(
                _TELEMETRY + "tracing.py", (("context if _is_first(attempt) else None", "context"),)
            ),
        ),
    ),
)
