"""The routes below /api/v1, a file for each noun; ``fairlead.api.route_table`` gathers them.

Start with ``tasks``; the others are made alike.
"""
