"""What a task costs: `make bench` runs `command`, which measures one part after the other.

Nothing here is part of the wheel. `README.md` says what the figures mean, `peers` measures other
task queues beside Fairlead, `instructions` and `processor_time` compare two checkouts.
"""
