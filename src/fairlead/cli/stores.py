"""The broker that a command is about."""

from __future__ import annotations

import click

from fairlead.broker import Store, connect
from fairlead.settings import FILE, VARIABLE, configured_url

__all__ = ("open_store", "url_option")

url_option = click.option("--url", help=f"The broker; without it, {VARIABLE} or {FILE} says which.")


def open_store(url: str | None) -> Store:
    """The broker of this URL, or of the one that is configured; a usage error if there is none."""
    url = url or configured_url()
    if not url:
        raise click.UsageError(f"which broker? Give --url redis://HOST, or set {VARIABLE}")
    if url.lower().startswith("memory:"):
        text = "memory:// lives inside the process that uses it, where no command can look"
        raise click.UsageError(f"{text}; give the --url of a server")
    return connect(url)
