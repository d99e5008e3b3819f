"""``python -m fairlead.cli.demo_tenants`` enqueues until a signal says to stop."""

from fairlead.cli.demo_tenants.tenants import main

main()
