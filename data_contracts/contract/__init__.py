"""The contract on raw data: a Great Expectations suite, the engine that runs it, and its findings in words. The only
package that imports Great Expectations.

`engine.check` asks `translation` for the questions (`questions`) that one `scan` answers; Great Expectations
(`great_expectations_engine`, over the `frames` it gets) decides the rest, and `findings` puts the failures in words.
"""
