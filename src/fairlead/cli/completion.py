"""``fairlead completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

from fairlead.cli.common.commands import Command

_VARIABLE = "_FAIRLEAD_COMPLETE"  # click looks for it under this name


@click.command(
    cls=Command,
    examples=(
        ("fairlead completion bash > ~/.local/share/bash-completion/completions/fairlead", "Bash"),
        ("fairlead completion zsh > ~/.zfunc/_fairlead", "Zsh, with ~/.zfunc in fpath"),
        ("fairlead completion fish > ~/.config/fish/completions/fairlead.fish", "Fish"),
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what a shell needs to complete commands and options.

    Put it where the shell looks for completions, and start a new shell. Bash needs 4.4 or later.
    """
    from click.shell_completion import get_completion_class

    from fairlead.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click has all three
    click.echo(found(cli, {}, "fairlead", _VARIABLE).source())
