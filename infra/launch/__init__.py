"""Starting processes that can be found and ended: children that answer through files, nodes, the conductor."""
