"""``python -m fairlead`` is the command ``fairlead``."""

from __future__ import annotations

from fairlead.cli.main import main

main()
