"""The contract on raw data: a Great Expectations suite, the engine that runs it, and its findings in words. The only
package that imports Great Expectations.
"""
