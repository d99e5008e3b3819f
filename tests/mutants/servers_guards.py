"""Guards of routes to several servers: one that is away, and levels that lie apart."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_SHARDED = "fairlead/broker/sharded/"
_ROUTES = "tests/broker/redis/test_routes.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "share of the low server",
        "a backlog on one server does not starve the lower levels of another",
        _ROUTES
        + "test_higher_levels_are_lent_first_and_each_eighth_fetch_begins_with_the_low_ones",
        (Mutant(_SHARDED + "exchange.py", (("session.turn += 1", "session.turn += 0"),)),),
    ),
    Guard(
        "all shards of a queue",
        "a pause holds on every server that has tasks of the queue",
        _ROUTES + "test_pause_limits_purge_and_deletion_are_for_both_servers",
        (
            Mutant(
                _SHARDED + "places.py",
                (("else self.shards_of(queue)", "else [self.home(queue)]"),),
            ),
        ),
    ),
    Guard(
        "silent server",
        "waiting for mail of one server does not wait for another that is silent",
        _ROUTES + "test_mail_of_one_server_comes_while_the_other_one_is_silent",
        (
            Mutant(
                _SHARDED + "waits.py",
                (("if len(names) == 1 or session.away.why(shard) is None", "if names"),),
            ),
        ),
    ),
)
