"""The packages that a user's code needs beside ours: read, resolved once, sealed with the code, installed per machine.

`requirements` reads what the user asks for, `packages` is the resolved list as the code bundle holds it, `build` makes
an environment of a list, and `cache` keeps the environments of this machine. A process that imports the user's code is
started with the interpreter that `cache.interpreter` returns.
"""
