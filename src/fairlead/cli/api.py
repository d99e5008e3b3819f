"""``fairlead api``: a server of the HTTP API."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from fairlead.cli.common.broker_option import broker_url, url_option
from fairlead.cli.common.commands import Number, log_options, talk
from fairlead.cli.common.configured_command import ConfiguredCommand
from fairlead.cli.common.exit_codes import OK
from fairlead.model.errors import InvalidInput

if TYPE_CHECKING:
    import socket


@click.command(
    cls=ConfiguredCommand,
    table="api",
    # Not FAIRLEAD_API: Kubernetes sets FAIRLEAD_API_PORT for a service that is named fairlead-api.
    prefix="FAIRLEAD_HTTP",
    examples=(
        ("fairlead api --url redis://localhost", "on 127.0.0.1 port 8800, for callers with tokens"),
        ("fairlead api shop.tasks:app --open-to-loopback", "no token for callers of this machine"),
        ("fairlead api --host 0.0.0.0 --allow-host api.example.org", "for other machines"),
        ("fairlead api --print-openapi", "the description of the API"),
    ),
)
@click.argument("app", metavar="[APP]", required=False)
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8800, show_default=True,
    help="The port; 0 is any that is free.",
)  # fmt: skip
@click.option(
    "--fd", type=click.IntRange(0), default=None, metavar="NUMBER", allow_from_autoenv=False,
    help="Serve on this open socket that listens, instead of --host and --port.",
)  # fmt: skip
@click.option(
    "--open-to-loopback", is_flag=True,
    help="Callers of this machine need no token. Never behind a proxy.",
)  # fmt: skip
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME[:PORT]",
    help="A name that callers may use for this server, as it stands in Host. Repeatable.",
)  # fmt: skip
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="ORIGIN",
    help="Pages of this origin may call, such as https://panel.example.org. Repeatable.",
)  # fmt: skip
@click.option(
    "--redact", multiple=True, metavar="PATH",
    help="A field of arguments and results that is never shown, such as card.number. Repeatable.",
)  # fmt: skip
@click.option(
    "--token-rate", type=Number(0.01, 1e6), default=None,
    help="Requests a second of one token.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--tenant-rate", type=Number(0.01, 1e6), default=None,
    help="Requests a second of all tokens of a tenant.  [default: no limit]",
)  # fmt: skip
@click.option(
    "--metrics-tenants", is_flag=True,
    help="/metrics names the ten tenants that wait longest.",
)  # fmt: skip
@click.option(
    "--grace", type=Number(1, 3_600), default=20.0, show_default=True,
    help="Seconds that requests have to end when the server stops.",
)  # fmt: skip
@click.option(
    "--drain-delay", type=Number(0, 600), default=1.0, show_default=True,
    help="Seconds between a failing /readyz and the end of the listener.",
)  # fmt: skip
@log_options
@click.option(
    "--print-openapi",
    is_flag=True,
    allow_from_autoenv=False,
    help="Print the description of the API, and end.",
)
def api(
    app: str | None,
    url: str | None,
    host: str,
    port: int,
    fd: int | None,
    open_to_loopback: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    redact: tuple[str, ...],
    token_rate: float | None,
    tenant_rate: float | None,
    metrics_tenants: bool,
    grace: float,
    drain_delay: float,
    log_format: str,
    log_level: str,
    print_openapi: bool,
) -> int:
    """Serve the HTTP API of APP, which is MODULE:ATTRIBUTE, or of a broker alone.

    With APP, its tasks can be submitted before a worker of it has run. Tokens are made by `fairlead
    token create`. TERM drains: /readyz fails, long polls are answered and sockets closed, then the
    server ends. Exit codes: 0 stopped, 2 wrong usage, 3 the broker cannot be reached.
    """
    from fairlead.api.settings import ApiSettings
    from fairlead.app import Fairlead
    from fairlead.app.services import missing_extra
    from fairlead.cli.common.app_loader import load_app
    from fairlead.runtime.event_loop import new_runner
    from fairlead.runtime.systemd import notifying
    from fairlead.telemetry.log import configure

    if print_openapi:
        import json

        from fairlead.api.openapi import document

        click.echo(json.dumps(document(), indent=2, sort_keys=True))
        return OK
    if app is not None and url is not None:
        raise click.UsageError("APP says which broker; leave --url out")
    inherited = None if fd is None else _inherited(fd)
    host = host if inherited is None else inherited.getsockname()[0]
    outside = not _is_loopback(host)
    if open_to_loopback and outside:
        raise click.UsageError("--open-to-loopback goes with a --host of this machine only")
    target = Fairlead(broker_url(url)[0]) if app is None else load_app(app)
    try:
        from fairlead.api.serve import address, listen, serve
    except ModuleNotFoundError as error:
        raise missing_extra("server", error) from None

    listener = listen(host, port) if inherited is None else inherited
    configure(log_format, log_level)
    settings = ApiSettings(
        hosts=(*_own_names(listener, host), *hosts),
        origins=origins,
        open_to_loopback=open_to_loopback,
        redact=redact,
        token_rate=token_rate,
        tenant_rate=tenant_rate,
        metrics_tenants=metrics_tenants,
    )

    async def run() -> None:
        server = target.asgi(settings)
        try:
            if outside and not await server.service.has_tokens():
                raise InvalidInput(
                    f"--host {host} is open to other machines, and there is no token; "
                    "make one first: fairlead token create --scopes read"
                )
            await server.service.warm_up()
            async with notifying():
                await serve(
                    server,
                    listener,
                    grace=grace,
                    delay=drain_delay,
                    started=lambda: talk(f"listening on {address(listener)}"),
                )
        finally:
            await target.aclose()

    with listener, new_runner() as runner:
        runner.run(run())
    return OK


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _inherited(fd: int) -> socket.socket:
    """The socket of a descriptor that whoever started this process left open."""
    import socket

    try:
        found = socket.socket(fileno=fd)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise click.BadParameter(f"{fd} is not an open socket ({error.strerror}).") from None
    if not listens or found.family not in (socket.AF_INET, socket.AF_INET6):
        found.detach()  # it is not ours to close
        raise click.BadParameter(f"{fd} is not a TCP socket that listens.")
    os.set_inheritable(fd, False)
    return found


def _own_names(listener: socket.socket, host: str) -> tuple[str, ...]:
    """The names of this machine that a caller of it uses; others have to be allowed."""
    from ipaddress import ip_address

    port = listener.getsockname()[1]
    names = ["localhost", "127.0.0.1", "[::1]"]
    try:
        if not ip_address(host).is_unspecified:
            names.append(f"[{host}]" if ":" in host else host)
    except ValueError:
        names.append(host)
    exact = [f"{name}:{port}" for name in dict.fromkeys(names)]
    return (*exact, *(dict.fromkeys(names) if port == 80 else ()))
