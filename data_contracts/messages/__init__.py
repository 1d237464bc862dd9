"""The messages between our processes, as types: one module for the gang, one for children that do a single job.

A message is written as JSON with a schema number and read back into the same type; nobody reads a key of a message.
Content that is the user's (a Lightning config, a spec's section) stays a dictionary inside it. What stages hand to each
other and what the store keeps of a run are in `data_contracts.handoffs`.
"""
