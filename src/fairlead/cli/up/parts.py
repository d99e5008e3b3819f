"""The processes of ``fairlead up``, and how each is called."""

from __future__ import annotations

from fairlead.cli.up.process import Part
from fairlead.cli.up.target import Target

DEMO_APP = "fairlead.cli.demo_tenants.tasks:app"
DEMO_QUEUES = "demo-mail,demo-billing,demo-reports,demo-media"

#: The tenants of the demo, who come when everything is ready.
DEMO = Part(name="demo", module="fairlead.cli.demo_tenants")

# `fairlead up` promises to end within three seconds, so all of it has less.
_GRACE = "1"


def parts_of(
    target: Target,
    *,
    demo: bool,
    ledger: bool,
    concurrency: int | None,
    level: str,
    listener: int,
    reload: bool,
) -> list[Part]:
    """Return the processes: an API always, the others as there is something to do for them."""
    logs = _logs(level)
    served = target.app or (DEMO_APP if demo else None)
    api = ("api", *([served] if served else []), "--fd", str(listener))
    found = [
        Part(
            name="api",
            arguments=(*api, "--grace", _GRACE, "--drain-delay", "0", *logs),
            fds=(listener,),
        )
    ]
    at_a_time = () if concurrency is None else ("-c", str(concurrency))
    common = (*at_a_time, "--grace", _GRACE)
    if target.app:
        more = ("--reload",) if reload else ()
        found.append(Part(name="worker", arguments=("worker", target.app, *common, *logs, *more)))
    if demo:
        named = ("worker", DEMO_APP, "-q", DEMO_QUEUES)
        # Its tasks fail on purpose: what is tried again would fill the window.
        quiet = (*_logs("error" if level == "info" else level), "--no-log-errors")
        found.append(Part(name="worker", arguments=(*named, *common, *quiet)))
    if ledger:
        found.append(Part(name="manager", arguments=("manager", "run", *logs)))
    return found


def _logs(level: str) -> tuple[str, ...]:
    return ("--log-format", "console", "--log-level", level)
