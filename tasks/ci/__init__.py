"""The outputs of a run for CI: cases of JUnit, a summary, annotations and outputs.

Everything here may be public, so no value of the data and no error's own text is in it.
"""
