"""A gang: the nodes that train one model together.

`conductor` decides, with `members` and `recovery`; `supervisor` executes on each node, with `ranks`; `ledger` holds
what both leave in the store; `remote_job` runs a single job on another machine's node.
"""
