"""PostgreSQL as the record of tasks: what was committed, what became of it, who sends it.

Start with ``ledger``; ``queries`` has one method for each named statement in ``sql/``, ``migrator``
brings the schema up to date. Nothing here speaks to a broker.
"""
