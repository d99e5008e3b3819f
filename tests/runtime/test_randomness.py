"""What Fairlead leaves to chance is its own: no program seeds it, and it disturbs no program."""

from __future__ import annotations

import random

from fairlead.broker.repeats import pause
from tests.runtime.programs import run


def test_a_program_that_seeds_the_shared_generator_does_not_align_pauses() -> None:
    before = random.getstate()
    try:
        drawn = []
        for _ in range(2):
            random.seed(0)
            drawn.append([pause(10) for _ in range(10)])
            assert random.random() == random.Random(0).random()  # nothing was drawn from it
    finally:
        random.setstate(before)
    assert drawn[0] != drawn[1]


def test_forked_children_draw_each_their_own() -> None:
    assert run(FORK) == "5\n"


FORK = """
import os
from fairlead.runtime.randomness import generator

reading, writing = os.pipe()
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        os.write(writing, b"%r " % generator.random())
        os._exit(0)
    children.append(child)
os.close(writing)
with os.fdopen(reading) as pipe:
    drawn = pipe.read().split()
assert not any(os.waitpid(child, 0)[1] for child in children)
print(len({*map(float, drawn), generator.random()}))
"""
