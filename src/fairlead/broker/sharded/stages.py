"""The stages of a batch: a dependency in another shard has to be there before its child."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.broker.requests import Submission

Places = dict[str, list[int]]  # by shard: which items of the batch


def stages_of(submissions: Sequence[Submission], homes: Sequence[str]) -> list[Places]:
    """Return which items go to which shard, stage after stage; in a shard they stay in order.

    It follows from the batch and the shards of its items alone.
    """
    stages: list[Places] = [{}]
    entered: dict[str, tuple[str, int]] = {}
    last: dict[str, int] = {}
    for i, submission in enumerate(submissions):
        shard = homes[i]
        stage = last.get(shard, 0)
        for dependency in submission.depends_on:
            other, reached = entered.get(dependency.id, (shard, 0))
            stage = max(stage, reached if other == shard else reached + 1)
        if stage == len(stages):
            stages.append({})
        stages[stage].setdefault(shard, []).append(i)
        last[shard] = stage
        entered[submission.message.id] = shard, stage
    return stages


def incarnation_of(incarnation: str, stage: int) -> str:
    """Return under which name a shard counts the calls of a stage."""
    return f"{incarnation}/{stage}" if stage else incarnation
