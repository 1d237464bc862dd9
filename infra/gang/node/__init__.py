"""A node's side of a gang: its supervisor, its ranks as processes, their logs and stacks, the links to other nodes.

It makes no decisions for the gang.
"""
