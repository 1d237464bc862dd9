"""Has documents cut by the user's tokenizer, once for all stages: a child cuts them, and the store keeps the cuts.

The cuts of a tokenizer have a key of their own, made of its code and arguments. Each sealed directory has the cuts of
all documents of the run that found a new one, so that the next run cuts new documents only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from data_contracts.canonical import canonical, reuse_key
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref, SourceFile
from data_contracts.messages.raw_data import CUT, CutRequest, TextCuts
from data_contracts.pipeline_spec import PiecesSpec, SourceSpec
from data_contracts.yaml_text import dotted
from infra.sources.documents import cut_name
from infra.store.seal import Writer
from infra.store.store import newest_sealed, seal_attempt
from tasks.run.run import Run
from tasks.run.spec_check import named_tokenizers
from tasks.stages.placement import run_here

# Raised when a tokenizer's answer is cut in another way.
CUTS_VERSION = 1
AREA = "contracts"
CUTS_FILE, CUTS_KIND = "cuts.json", "text_cuts"
# Sealed directories that are looked through, the newest first.
MOST_CUTS = 8
# Of cuts in a file: the store reads no file above 256 MiB as a whole.
MOST_FILE_BYTES = 1 << 26

log = logging.getLogger("trainwright")


def cut_files(run: Run, files: Sequence[SourceFile], sources: Sequence[SourceSpec]) -> list[SourceFile]:
    """The files, each document that a tokenizer cuts with its cut, by which its rows are read.

    Raises as `training.shard.cut_worker.main`.
    """
    cuts: dict[str, dict[str, str]] = {}
    found = []
    for file in files:
        pieces = sources[file.source].pieces
        if pieces is None or pieces.tokenizer is None:
            found.append(file)
            continue
        kind = pieces.model_dump_json()
        if kind not in cuts:
            alike = [one for one in files if sources[one.source].pieces == pieces]
            cuts[kind] = _cuts(run, pieces, alike, sources)
        found.append(file.model_copy(update={"cut": cuts[kind][cut_name(file)]}))
    return found


def _cuts(run: Run, pieces: PiecesSpec, files: list[SourceFile], sources: Sequence[SourceSpec]) -> dict[str, str]:
    """The cuts of documents by name: known ones, and for other documents new ones; all are sealed together."""
    settings = {"pieces": pieces.model_dump(mode="json")}
    key = reuse_key("cut", CUTS_VERSION, settings, [], run.resolved.code_digest)
    names = list(dict.fromkeys(map(cut_name, files)))
    known = _known(run, key, names)
    new = [file for file in files if cut_name(file) not in known]
    if not new:
        return known
    request = CutRequest(
        files=new,
        sources=list(sources),
        root=run.resolved.root,
        pieces=pieces,
        field=_field(run, pieces),
        project=str(run.project()),
    )
    made = run_here(run, CUT, request, project=run.project(), memory_share=run.memory_share)
    cuts = TextCuts(documents={**known, **made.documents})
    log.info("%d of %d documents are cut anew by %s", len(made.documents), len(names), request.field)

    def fill(writer: Writer) -> Ref:
        for name, some in _in_files(cuts.documents):
            writer.put(name, canonical(some.to_json()))
        return writer.seal(CUTS_KIND, {"key": key, "version": CUTS_VERSION, **settings}, run.provenance())

    seal_attempt(run.store, AREA, key, fill)
    return cuts.documents


def _known(run: Run, key: str, names: Iterable[str]) -> dict[str, str]:
    """The cuts of these documents in the store, without those that are damaged, gone or another user's alone."""
    wanted, known = set(names), dict[str, str]()
    for manifest in newest_sealed(run.store, AREA, key, MOST_CUTS):
        try:
            for file in manifest.file_at:
                documents = run.store.read_sealed_as(manifest, file, TextCuts.from_json).documents
                known |= {name: documents[name] for name in wanted & documents.keys()}
                wanted -= documents.keys()
        except (FileNotFoundError, CorruptError, UsageError) as error:
            log.warning("Documents are cut again, because where they were cut before cannot be read: %s", error)
        if not wanted:
            break
    return known


def _in_files(documents: Mapping[str, str]) -> Iterator[tuple[str, TextCuts]]:
    """The names of the files that keep these cuts, and the cuts in each."""
    some: dict[str, str] = {}
    number = size = 0
    for name in sorted(documents):
        if some and size + len(documents[name]) > MOST_FILE_BYTES:
            yield _file(number), TextCuts(documents=some)
            some, number, size = {}, number + 1, 0
        some[name], size = documents[name], size + len(name) + len(documents[name])
    yield _file(number), TextCuts(documents=some)


def _file(number: int) -> str:
    return f"{number}-{CUTS_FILE}" if number else CUTS_FILE


def _field(run: Run, pieces: PiecesSpec) -> str:
    """The first field of the spec that names this tokenizer."""
    return next(dotted(field) for field, one in named_tokenizers(run.spec) if one == pieces.tokenizer)
