"""The processes of ``fairlead worker``: a supervisor, its children, and what lies between them.

Start with ``supervisor`` and ``child``. ``supervisor_link`` is the child's end of ``ipc``.
"""
