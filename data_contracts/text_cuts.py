"""The cuts of documents that the store keeps, so that all stages and later runs see the same pieces."""

from __future__ import annotations

from data_contracts.handoffs import HandOff


class TextCuts(HandOff):
    """The cuts of documents by one tokenizer.

    Attributes:
        documents: the packed cut of each document (`infra.sources.documents.pack`), by `cut_name`.
    """

    documents: dict[str, str]
