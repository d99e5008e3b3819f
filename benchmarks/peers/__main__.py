"""`python -m benchmarks.peers`, which is what `make bench ARGS=peers` runs."""

import sys

from benchmarks.peers.command import main

sys.exit(main())
