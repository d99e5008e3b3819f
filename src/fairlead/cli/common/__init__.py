"""What commands share: options, exit codes, output, and the base classes of commands.

Start with ``commands``. Which broker, app or tasks a command means: ``broker_option``,
``app_loader``, ``task_filter``.
"""
