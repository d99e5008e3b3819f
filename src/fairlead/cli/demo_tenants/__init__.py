"""The tenants of ``fairlead up --demo``: an app with tasks of all kinds, and who enqueues them.

Start with ``tasks``, the app; ``tenants`` enqueues as long as the demo runs.
"""
