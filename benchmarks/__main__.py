"""`python -m benchmarks`, which is what `make bench` runs."""

import sys

from benchmarks.command import bench
from fairlead.cli.main import run

sys.exit(run(bench, sys.argv[1:], "python -m benchmarks"))
