"""The user's code in our processes: imports it by dotted path, builds its module, data module and Trainer, and tries
both before any node is launched. Decides whether a failure is the user's. It never trains or scores.
"""
