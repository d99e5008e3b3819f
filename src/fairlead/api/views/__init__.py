"""What callers get to see: tasks, tenants, counts and pages of them as JSON.

Start with ``tasks``; ``paging`` has what all answers share, ``redaction`` fields that nobody sees.
"""
