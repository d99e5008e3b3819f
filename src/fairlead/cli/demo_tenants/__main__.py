"""``python -m fairlead.cli.demo_tenants`` enqueues until a signal says to stop."""

from __future__ import annotations

from fairlead.cli.demo_tenants.tenants import main

main()
