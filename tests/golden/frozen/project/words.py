"""A tokenizer: each word is a token."""

import re


class Words:
    def __init__(self, lower=False):
        self.lower = lower

    def starts(self, text):
        return [match.start() for match in re.finditer(r"\S+", text)]
