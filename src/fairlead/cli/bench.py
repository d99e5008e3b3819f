"""``fairlead bench``: run the benchmarks of the source tree, which the package does not contain."""

from __future__ import annotations

import click

from fairlead.cli.common.commands import Command


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    examples=(
        ("fairlead bench --quick", "without the largest backlogs: two or three minutes"),
        ("fairlead bench server --json > before.json", "to compare with later"),
        ("fairlead bench -- --help", "what can be measured"),
    ),
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def bench(args: tuple[str, ...]) -> None:
    """Measure what a task costs on this machine.

    The benchmarks are part of the source tree, not of the package: clone it, and run this in the
    clone. ARGS are those of `make bench`.
    """
    import sys
    from pathlib import Path

    from fairlead.model.errors import Refused

    # The clone that this code belongs to, if it is an editable install, or the current directory.
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "benchmarks/command.py").is_file() and (root / "src/fairlead").is_dir():
            break
    else:
        raise Refused(
            "source", "the benchmarks are part of the source tree: clone it and run make bench"
        )
    sys.path.insert(0, str(root))
    from benchmarks.command import bench as measure

    measure.main(list(args), prog_name="fairlead bench", standalone_mode=False)
