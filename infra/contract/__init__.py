"""Checks of raw data against a contract: the work, the profiles and the parts that are kept between runs.

The suites and the engine that decides are in `data_contracts.contract`.
"""
