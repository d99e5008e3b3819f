"""Guards of the HTTP API: who is let in, and how much."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_API = "fairlead/api/"
_TESTS = "tests/api/"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(_API + file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "scope",
        "a token does only what its scopes allow",
        _TESTS + "auth/test_access.py::test_a_token_without_the_scope_is_refused_on_every_route",
        _at("auth/access.py", "    if scope not in access.scopes:\n", "    if False:\n"),
    ),
    Guard(
        "tenant of a task",
        "a task of another tenant does not exist",
        _TESTS + "test_tasks.py::test_what_belongs_to_another_tenant_does_not_exist",
        _at(
            "task_lookup.py",
            "    if record is None or (own is not None and record.message.tenant != own):\n",
            "    if record is None:\n",
        ),
    ),
    Guard(
        "tenant of a request",
        "a token of one tenant cannot ask for another",
        _TESTS + "test_tasks.py::test_what_belongs_to_another_tenant_does_not_exist",
        _at(
            "http/route.py",
            "        if asked is not None and asked != own:\n",
            "        if False:\n",
        ),
    ),
    Guard(
        "tenant of a dependency",
        "a task cannot wait for, and so read, what is another tenant's",
        _TESTS + "test_tasks.py::test_what_belongs_to_another_tenant_does_not_exist",
        _at(
            "submissions.py",
            "        if record is None or record.message.tenant != own\n",
            "        if record is None\n",
        ),
    ),
    Guard(
        "host",
        "a name that leads here by rebinding is not answered",
        _TESTS + "auth/test_access.py::test_another_host_is_refused",
        _at("auth/access.py", "        if not self._is_known(host):\n", "        if False:\n"),
    ),
    Guard(
        "origin",
        "pages of other origins do not call",
        _TESTS + "auth/test_access.py::test_a_page_of_another_origin_is_refused",
        _at("auth/access.py", "rest == host", "bool(rest)"),
    ),
    Guard(
        "site",
        "a page of another site changes nothing",
        _TESTS + "auth/test_access.py::test_a_page_of_another_site_changes_nothing",
        _at(
            "auth/access.py",
            "        if mutates and site is not None",
            "        if False and site is not None",
        ),
    ),
    Guard(
        "proxy",
        "what comes through a proxy is not taken for this machine",
        _TESTS + "auth/test_access.py::test_what_comes_through_a_proxy_is_not_loopback",
        _at("service.py", "if name in _FORWARDED or name.startswith", "if name.startswith"),
    ),
    Guard(
        "declared body",
        "a body that says it is too long is not read",
        _TESTS + "http/test_input.py::test_a_body_that_says_it_is_too_long_is_not_read",
        _at("http/input.py", "int(length) > limit:\n", "int(length) > 2**60:\n"),
    ),
    Guard(
        "streamed body",
        "a body is cut off at its limit, whatever it says",
        _TESTS + "http/test_input.py::test_a_body_that_goes_on_is_cut_off_at_its_limit",
        _at(
            "http/body.py",
            "                if size > limit:\n",
            "                if size > 10 * limit:\n",
        ),
    ),
    Guard(
        "guesses",
        "those who guess tokens do not get to read the broker",
        _TESTS
        + "auth/test_token_cache.py::test_those_who_guess_are_slowed_down_and_cost_few_reads",
        _at("auth/token_cache.py", "            self._check_guesses(peer)\n", "            pass\n"),
    ),
    Guard(
        "revocation",
        "a revoked token ends within two seconds",
        _TESTS + "auth/test_token_cache.py::test_a_revoked_token_ends_within_two_seconds",
        _at("auth/token_cache.py", "age >= _KNOWN and not (out", "age >= 99 * _KNOWN and not (out"),
    ),
    Guard(
        "expiry",
        "an expired token is refused",
        _TESTS + "auth/test_token_cache.py::test_an_expired_token_is_refused",
        _at("auth/token_cache.py", "time.time() >= stored.expires_at", "time.time() < 0"),
    ),
    Guard(
        "share",
        "a tenant does not decide about the share of others",
        _TESTS + "test_tasks.py::test_a_tenant_does_not_decide_about_the_share_of_others",
        _at("submissions.py", '_SHARES = ("cost", "limiters")', '_SHARES = ("limiters",)'),
    ),
    Guard(
        "doubt of a batch",
        "what may have been accepted is not told as refused",
        _TESTS + "test_task_batch.py::"
        "test_a_broker_that_fails_in_the_middle_ends_the_batch_and_leaves_no_lie",
        _at("batches.py", '"refused" if certain else "in_doubt"', '"refused"'),
    ),
    Guard(
        "late body",
        "a body without end is not read for ever after its answer",
        _TESTS + "acceptance/test_bodies.py::test_an_endless_line_is_cut_off",
        _at(
            "http/header_limits.py",
            "            if self._late > MAX_LATE:\n",
            "            if False:\n",
        ),
    ),
    Guard(
        "batch without a broker",
        "an array of which the broker has nothing is a 503 that says when to come again",
        _TESTS + "test_task_batch.py::test_a_broker_without_memory_is_told_from_one_that_is_away",
        _at(
            "routes/task_batch.py",
            "    if piece.stopped is not None and not counts.any_kept:\n",
            "    if False:\n",
        ),
    ),
    Guard(
        "dependency of many",
        "each task of a batch that depends on another tenant's is refused, not only the last",
        _TESTS + "test_task_batch.py::test_what_belongs_to_others_is_refused_line_by_line",
        _at(
            "submissions.py",
            "dependency.id\n        for each in submissions\n",
            "dependency.id\n        for each in submissions[-1:]\n",
        ),
    ),
    Guard(
        "ids of others",
        "a tenant is not told the ids of another's tasks that its own wait for",
        _TESTS + "test_tenant_crossing.py::test_ids_of_others_that_a_task_waits_for_are_not_told",
        _at("task_lookup.py", " if each is not None and each.message.tenant == own}", " if each}"),
    ),
    Guard(
        "change before the doubt",
        "a change that was made is not told as if nothing was",
        _TESTS + "test_doubt.py::test_a_change_that_cannot_be_shown_any_more_was_made",
        _at("http/route.py", "        self.noted = True\n", ""),
    ),
    Guard(
        "note of a request that ended",
        "what was changed is noted although the request took too long",
        _TESTS + "test_doubt.py::test_a_note_is_written_even_if_the_request_has_ended",
        _at("service.py", "await asyncio.shield(writing)", "await writing"),
    ),
    Guard(
        "batch without a catalog",
        "a broker that does not say what is known is asked once for a batch",
        _TESTS + "test_task_batch.py::test_a_broker_that_cannot_say_what_is_known_is_asked_once",
        _at(
            "batches.py",
            "            raise Stopped(problem_of(error) or BrokerAway()) from None\n",
            "            self.refuse(index, error)\n            return\n",
        ),
    ),
)
