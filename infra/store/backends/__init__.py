"""Where a store's bytes lie: a folder, S3, or S3 with its names in a database; each has the operations of `Backend`.

Nothing here knows seals, pointers or leases.
"""
