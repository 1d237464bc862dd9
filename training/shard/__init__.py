"""From source files to sealed shards: two passes over the rows in bounded memory, in this process, in several processes
or on a cluster. Torch-free; the formats of the shards themselves are in `training.formats`.
"""
