"""Reads expressions that users write in a spec, as a tree of permitted parts; none of them runs as code."""
