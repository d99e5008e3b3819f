"""Servers that come with Fairlead and start by themselves.

Start with ``valkey`` and ``postgres``, which decide who starts and who joins; ``valkey_server`` and
``postgres_server`` run the programs, ``directory`` has the locks between processes.
"""
