"""Fairlead inside of web frameworks: each module needs the framework that it is named for.

Nothing else imports them; ``examples/`` has a program for each.
"""
