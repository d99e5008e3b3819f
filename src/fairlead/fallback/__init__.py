"""While the broker is away: tasks and outcomes are kept in a spool, and sent when it is back.

Start with ``fallback``, which puts the parts together: ``submitter`` is the way in, ``drainer`` the
way out, ``background`` runs it, ``local_tasks`` runs tasks here meanwhile. ``recent_enqueues`` and
``replay`` send again what a failover lost. What is decided is decided in ``fairlead.model.outage``.
"""
