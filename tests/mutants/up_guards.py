"""Guards of `fairlead up`, of links that sign in, and of namespaces."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_SIGN_IN = "tests/api/auth/test_sign_in.py::"
_STACK = "tests/cli/up/test_stack.py::"
_NAMESPACE = "tests/broker/redis/test_namespace.py::"


def _at(file: str, old: str, new: str) -> tuple[Mutant, ...]:
    return (Mutant(f"fairlead/{file}", ((old, new),)),)


GUARDS: tuple[Guard, ...] = (
    Guard(
        "one sign-in",
        "of many who have the code of a link, one gets a token",
        _SIGN_IN + "test_of_many_who_have_the_code_at_once_one_gets_a_token",
        _at("api/auth/sign_in.py", ", revision=found[0].revision)", ")"),
    ),
    Guard(
        "secret of a link",
        "the id of a code alone opens nothing",
        _SIGN_IN + "test_a_code_with_another_secret_opens_nothing_and_stays_good",
        _at(
            "api/auth/sign_in.py",
            "    if not hmac.compare_digest(stored.hash, _hash(given.secret)):\n",
            "    if False:\n",
        ),
    ),
    Guard(
        "lifeline",
        "a process of `fairlead up` ends when that has gone",
        _STACK + "test_a_process_ends_when_the_one_that_started_it_has_gone",
        _at("cli/up/lifeline.py", "    os.kill(os.getpid(), signal.SIGTERM)\n", "    return\n"),
    ),
    Guard(
        "namespace of keys",
        "installations on one server have keys of their own",
        _NAMESPACE + "test_two_on_one_server_have_their_own_tasks_workers_tokens_and_limits",
        _at("broker/redis/keys.py", 'f"{namespace}/{shard}" if namespace else shard', "shard"),
    ),
    Guard(
        "namespace of a spool",
        "what was kept for one installation is not sent to another",
        _NAMESPACE + "test_where_a_spool_belongs_names_it",
        _at("broker/redis/session.py", ", self.namespace\n        )", ", ''\n        )"),
    ),
    Guard(
        "namespace of routes",
        "the servers of an installation's routes belong to it",
        _NAMESPACE + "test_shards_and_routes_belong_to_it_too",
        _at("broker/topology.py", "with_namespace(route.url, first.namespace)", "route.url"),
    ),
)
