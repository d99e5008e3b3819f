"""The generator of all that Fairlead leaves to chance: pauses, turns, when a process retires.

It is not the one that the functions of ``random`` share, which belongs to the program. A program
that calls ``random.seed(0)`` would have a whole fleet wait the same pauses, and what Fairlead draws
in the background would change what a seeded program draws.
"""

from random import Random

from fairlead.runtime.process_hooks import at_fork

generator = Random()
at_fork(after_in_child=generator.seed)  # or all children would draw the same
