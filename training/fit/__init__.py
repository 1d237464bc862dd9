"""One rank of a training: Lightning's loop, the strategies, saving and resuming, divergence, and the reports to the
node's supervisor. It never scores a finished checkpoint and never starts processes.
"""
