"""The conductor's side of a gang: launch generations, follow their nodes, decide how to continue after a failure.

It never controls a rank directly.
"""
