"""A gang: the nodes that train one model together.

`conductor` decides, `node` executes, `checkpoints` holds what both leave in the store; `remote_job` runs a single job
on another machine's node.
"""
