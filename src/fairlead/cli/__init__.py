"""The command line: data goes to stdout, everything else to stderr.

Start with `main`, which lists all commands. `fairlead NAME` is in the file or the folder of that
name, and what commands share is in `common/`.
"""
