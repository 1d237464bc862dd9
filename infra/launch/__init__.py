"""Starting processes that can be found and ended: children that answer through files, nodes of a gang, the conductor."""
