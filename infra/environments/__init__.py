"""The packages that a user's code needs beside ours: read, resolved once, sealed with the code, installed per machine.

`packages` reads what the user asks for, and has the resolved list as the code bundle holds it; `cache` makes and keeps
the environments of this machine; `indexes` says where packages come from. A process that imports the user's code is
started with the interpreter that `cache.interpreter` returns.
"""
