"""Runs tasks: one file for each role of a worker. Start with ``worker``, which puts them together.

``processor`` is the main loop, ``run`` runs one attempt, ``process`` holds supervisor and children.
Nothing is imported here: a program that enqueues loads no worker.
"""
