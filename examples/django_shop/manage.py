"""Django's command line: python django_shop/manage.py fairlead_worker"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # where the package is, instead of this folder
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "django_shop.settings")

    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
