"""Guards of codecs: nothing is stored plain, nothing is unfolded without a bound."""

from __future__ import annotations

from tests.mutants.mutant import Guard, Mutant

__all__ = ("GUARDS",)

_TESTS = "tests/worker/test_codecs.py::"

GUARDS: tuple[Guard, ...] = (
    Guard(
        "codec-short-way",
        "the short ways of client and worker encode as the long ones do",
        _TESTS + "test_the_short_ways_encode_too",
        (
            Mutant(
                "fairlead/client/template.py",
                (("if self._codecs is None:", "if True:"),),
            ),
            Mutant(
                "fairlead/worker/run/light_attempt.py",
                ((", codecs=self._lights.codecs", ""),),
            ),
        ),
    ),
    Guard(
        "codec-missing",
        "a worker without the codec uses up no attempt",
        _TESTS + "test_a_worker_without_the_codec_leaves_the_task_to_others[memory]",
        (
            Mutant(
                "fairlead/worker/handler_router.py",
                (("except CodecError as error:", "except ZeroDivisionError as error:"),),
            ),
        ),
    ),
    Guard(
        "codec-bomb",
        "what is compressed is not unfolded beyond its bound",
        "tests/model/test_codecs.py::test_a_bomb_is_refused_before_it_is_unfolded",
        (
            Mutant(
                "fairlead/model/codecs.py",
                (("opened.decompress(data, self.max_size)", "opened.decompress(data)"),),
            ),
        ),
    ),
    Guard(
        "codec-conflict",
        "the same call, encoded otherwise, is a duplicate, and another one is not",
        _TESTS + "test_the_same_call_is_recognized_although_it_is_encoded_otherwise[memory]",
        (
            Mutant(
                "fairlead/client/task_reader.py",
                (
                    (
                        "(not other.body or codecs.readable_body(mine.body) == other.body)",
                        "mine.body == other.body",
                    ),
                ),
            ),
            Mutant(
                "fairlead/client/task_reader.py",
                (
                    (
                        "(not other.body or codecs.readable_body(mine.body) == other.body)",
                        "True",
                    ),
                ),
            ),
        ),
    ),
)
