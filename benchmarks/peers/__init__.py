"""Fairlead beside other task queues, on one server in one run: `make bench ARGS=peers`.

The bench runs in the environment of the checkout, the peers in environments of their own. So files
are of two kinds. `marks`, `adapter`, `driver` and `adapters` run beside a peer and import nothing
but the standard library and that peer; everything else runs in the bench.
"""
