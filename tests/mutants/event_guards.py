"""Guards of live events and hooks: who sees what, how much waits, and what is handled."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_LIVE = "fairlead/api/live/"
_TESTS = "tests/api/live/"
_STREAM = "tests/client/test_event_stream.py::"
_HOOKS = "tests/worker/test_hooks.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(file, ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "stream of a token that guesses",
        "a revoked token keeps no stream by wrong tokens of its address",
        _TESTS + "test_connection.py::test_wrong_tokens_of_its_address_keep_no_revoked_token_alive",
        _at(_LIVE + "connection.py", "token, again=True)", "token)"),
    ),
    Guard(
        "place of a client",
        "what happens between joining and being fed comes once",
        _TESTS + "test_hub.py::test_what_happens_before_a_client_is_fed_comes_once",
        _at(
            _LIVE + "hub.py",
            "places_of(subscription.joined))",
            "places_of(self._place or subscription.joined))",
        ),
    ),
    Guard(
        "tenant of a stream",
        "a token of one tenant gets no event of another",
        _TESTS + "test_websocket.py::test_a_token_of_a_tenant_sees_only_what_belongs_to_it",
        _at(
            _LIVE + "selection.py",
            "tenant=asked.tenant if access.tenant is None else access.tenant",
            "tenant=asked.tenant",
        ),
    ),
    Guard(
        "tenant of a filter",
        "a token of one tenant cannot ask for the events of another",
        _TESTS + "test_websocket.py::test_another_tenant_is_not_there",
        _at(
            _LIVE + "selection.py",
            "if access.tenant is not None and asked.tenant not in (None, access.tenant):",
            "if False:",
        ),
    ),
    Guard(
        "scope of a socket",
        "a token that may not read gets no events",
        _TESTS + "test_websocket.py::test_a_token_that_may_not_read_is_refused",
        _at(
            _LIVE + "websocket.py",
            '        require(access, "read")\n        return token, access\n',
            "        return token, access\n",
        ),
    ),
    Guard(
        "revoked stream",
        "a stream ends with its token",
        _TESTS + "test_websocket.py::test_a_revoked_token_ends_its_socket",
        _at(
            _LIVE + "connection.py",
            "        except (Unauthorized, Forbidden):\n            return\n",
            "        except (Unauthorized, Forbidden):\n            continue\n",
        ),
    ),
    Guard(
        "slow client",
        "what waits for a client that does not read is bounded",
        _TESTS + "test_hub.py::test_a_slow_client_is_dropped_with_the_id_to_resume_from",
        _at(
            _LIVE + "subscription.py",
            "        if self._events and not self._has_room(events):\n",
            "        if False:\n",
        ),
    ),
    Guard(
        "past before present",
        "what happens while a client catches up comes after it",
        _TESTS + "test_hub.py::test_what_happens_while_a_client_catches_up_comes_after_it",
        _at(
            _LIVE + "subscription.py",
            "        if self._held is not None:\n",
            "        if False:\n",
        ),
    ),
    Guard(
        "ring's reach",
        "a client from before the ring reads from the broker",
        _TESTS + "test_hub.py::test_an_id_that_is_not_known_any_more_is_a_gap",
        _at(
            _LIVE + "event_buffer.py",
            "if base is None or not all(reached(places, each) for each in base.values()):",
            "if base is None:",
        ),
    ),
    Guard(
        "no event twice",
        "a promoted server repeats nothing of what was read",
        _STREAM + "test_a_promoted_server_repeats_nothing_of_what_was_read",
        _at(
            "fairlead/client/event_stream.py",
            "if advance(self._places, event.id) and not is_old:",
            "if (advance(self._places, event.id) or True) and not is_old:",
        ),
    ),
    Guard(
        "unfinished event",
        "a named reader confirms no event that was not finished",
        _STREAM + "test_a_long_page_is_confirmed_on_the_way",
        _at(
            "fairlead/client/event_stream.py",
            "self._place = self._handed if self._ready else self._end",
            "self._place = self._end",
        ),
    ),
    Guard(
        "hook's place",
        "an event that a hook did not finish comes again",
        _HOOKS + "test_what_was_not_finished_by_a_process_that_died_comes_again_in_another",
        _at(
            "fairlead/client/event_stream.py",
            "self._place = self._handed if self._ready else self._end",
            "self._place = self._end",
        ),
    ),
    Guard(
        "hook's fence",
        "whoever was taken a hook from keeps no place of it",
        _HOOKS + "test_a_hook_that_was_taken_over_keeps_no_place_any_more",
        _at(
            "fairlead/worker/hooks.py",
            "            revision=self._revision,\n",
            "            revision=None,\n",
        ),
    ),
    Guard(
        "one process",
        "a hook that somebody holds is taken by nobody else",
        _HOOKS + "test_each_event_is_handled_by_one_of_several_processes",
        _at(
            "fairlead/worker/hooks.py",
            '            if held is None or held.holder in ("", self._id) or silent:\n',
            "            if True:\n",
        ),
    ),
    Guard(
        "place of a hook",
        "a hook that has read nothing yet keeps the place it had",
        _HOOKS + "test_a_hook_that_has_nothing_to_read_yet_keeps_the_place_it_had",
        _at(
            "fairlead/worker/hooks.py",
            "            place = events.place or self._written",
            "            place = events.place",
        ),
    ),
    Guard(
        "hanging calls",
        "calls of a hook that never end hold no more than a few threads",
        _HOOKS + "test_calls_that_never_end_hold_no_more_than_a_few_threads",
        _at(
            "fairlead/worker/hook_calls.py",
            "        await self._room.acquire()\n",
            "",
        ),
    ),
    Guard(
        "failing hook",
        "a hook that fails for ever does not stall",
        _HOOKS + "test_a_hook_that_fails_is_called_again_and_then_given_up",
        _at(
            "fairlead/worker/hooks.py",
            "        for pause in (*_PAUSES, None):\n",
            "        for pause in iter(lambda: 0.001, None):\n",
        ),
    ),
    Guard(
        "name of what is forgotten",
        "the end of a task that is not kept is told by its name",
        _STREAM + "test_the_end_of_a_task_that_is_not_kept_is_told_by_name",
        _at(
            "fairlead/client/event_stream.py",
            "each in heard if wanted.awaits(each.event)",
            "each in heard if False",
        ),
    ),
)
