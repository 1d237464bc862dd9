"""The user's project as a sealed bundle of code, and the installed versions beside it that decide the bytes of results.

Every node, retry and resume runs from the bundle, never from the folder that a person is editing.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from blake3 import blake3

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra.environments import packages as environments
from infra.environments.packages import Packages
from infra.processes.processes import CODE_ROOT
from infra.project import ProjectFiles, choose
from infra.settings import on_this_machine
from infra.store import Manifest, Store, layout
from infra.store.backend import MAX_READ_BYTES

log = logging.getLogger("trainwright")
LIBRARIES = ("distributed", "duckdb", "numba", "numpy", "pandas", "pyarrow")
ROOMS = ("data_contracts", "infra", "tasks", "training")
KIND = "code"
# In a folder of its own, because a project may have a manifest.json, too.
_FOLDER = "project"
# A key of the provenance, which is not part of the id: what the digest covers besides the `.py` files.
_NAMED = "named"
OUR_NAMES = ("training", "infra", "data_contracts")
# Combinations tried for a bundle of an earlier version, which does not record which of its files the spec named.
_MOST_COVERINGS = 20_000
_MOST_DIGESTS = 2_000_000


@functools.cache
def installed() -> dict[str, str]:
    """Versions by name; ImportError if a library is missing."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"Python": python, "Trainwright": source_digest()[:12], **versions}


@functools.cache
def source_digest() -> str:
    """BLAKE3 over our own modules, 64 hexadecimal digits."""
    ours = blake3()
    for room in ROOMS:
        for path in sorted((CODE_ROOT / room).rglob("*.py")):
            ours.update(f"{path.relative_to(CODE_ROOT)}\n".encode() + path.read_bytes())
    return ours.hexdigest()


def differences(earlier: dict[str, str]) -> list[str]:
    """The installed versions that differ from `earlier`, a result of `installed()`, in words."""
    return [f"{name} {here} instead of {earlier[name]}" for name, here in installed().items() if here != earlier[name]]


@dataclass(frozen=True)
class CodeBundle:
    """A sealed bundle.

    Attributes:
        ref: the sealed directory `code/<digest of all its files>`.
        digest: digest of its `.py` files and of the files that the spec names; part of reuse keys.
        root: the project's folder that it was packed from.
        chosen: the files of the project that are in the bundle, and those that were left out.
    """

    ref: Ref
    digest: str
    root: Path
    chosen: ProjectFiles = field(compare=False)


def project_root(spec_folder: Path) -> Path:
    """The nearest folder, from the spec's folder upwards, with `pyproject.toml` or `.git`; else the spec's folder.

    Trainwright's own checkout is not a user's project: for a spec inside it, the spec's folder is returned.
    """
    start = spec_folder.resolve()
    for folder in (start, *start.parents):
        if folder == CODE_ROOT:
            return start
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return start


def pack(
    spec_folder: Path,
    store: Store,
    extra: Iterable[Path] = (),
    provenance: Mapping[str, Any] | None = None,
    *,
    include: Sequence[str] = (),
    sources: Iterable[Path] = (),
    packages: Packages | None = None,
) -> CodeBundle:
    """Seal the project of the spec in `spec_folder`; the same files give the same bundle.

    `infra.project` decides what is packed. The digest always covers `extra` (files that the spec names)
    and what `include` brings in, and `extra` is packed if it is in the project. The code runs with `packages`, whose
    two files are added to the bundle; the digest covers the one with what the user asked for.

    Raises:
        UsageError: a top-level package or module has one of our names, a file does not exist, Git does not say what it
            ignores, or a named file is one that only `include` may bring in.
    """
    root = project_root(spec_folder)
    named = _named(extra)
    choice = choose(root, store, named=extra, include=include, sources=sources, environment=packages is not None)
    refuse_our_names(root, choice.packed)
    for name, path in choice.packed.items():
        layout.check_path(name, f"file's name in the project {root}")
        if path.stat().st_size > MAX_READ_BYTES:
            raise UsageError(
                f"code.include: {name} is larger than {MAX_READ_BYTES >> 20} MiB, the most for a packed file.",
                remedy="Leave it out, and let the code open it by a full path that each machine has; first weights "
                "come by train.init_from.",
            )
    content = {name: _read(path) for name, path in sorted(choice.packed.items())}
    content |= packages.files() if packages else {}
    digests = {name: blake3(data).hexdigest() for name, data in content.items()}
    apart = {name: digests[name] for name in choice.included}
    apart |= {environments.SEALED: digests[environments.SEALED]} if packages else {}
    apart |= {_name_of(path, root): blake3(_read(path)).hexdigest() for path in named}
    covered = {name: value for name, value in digests.items() if name.endswith(".py")} | apart
    # Two bundles may share a digest and differ in a README, so the directory is named by all of the files.
    code_digest, whole = digest(covered), _name_digest(digests, covered)
    for uri in filter(store.claim, (layout.code(whole, n) for n in itertools.count())):  # one that is not deleted
        try:
            bundle = store.verify(uri)
            check_bundle(store, bundle)
            return CodeBundle(bundle.ref, code_digest, root, choice)
        except CorruptError as error:
            # Records that name the damaged bundle must still find what is left of it.
            log.warning("The project's code is packed again, because its stored bundle is damaged: %s", error.message)
        except FileNotFoundError:
            break
    writer = store.writer(uri)
    entries = [writer.put(f"{_FOLDER}/{name}", data) for name, data in content.items()]
    about = {**(provenance or {}), _NAMED: apart}
    ref = writer.seal(KIND, {"digest": code_digest}, about, entries)
    return CodeBundle(ref, code_digest, root, choice)


def unpack(store: Store, ref: Ref, to: Path, *, code_digest: str | None = None) -> Path:
    """Unpack a bundle into the folder `to`, with its digest and each file checked.

    It is a copy: code never runs from inside the store.

    Args:
        code_digest: the expected digest of the code, as in reuse keys; None if unknown.

    Raises: CorruptError naming the bundle if its files do not match its name or `code_digest`.
    """
    manifest = store.manifest(ref)
    check_bundle(store, manifest, code_digest)
    with on_this_machine(to):
        to.mkdir(parents=True, exist_ok=True)
    for entry in manifest.files:
        try:
            data = store.read(f"{manifest.uri}/{entry.path}")
        except FileNotFoundError as error:
            raise CorruptError(f"{manifest.uri}/{entry.path} is missing.") from error
        if len(data) != entry.bytes or blake3(data).hexdigest() != entry.blake3:
            raise CorruptError(f"{manifest.uri}/{entry.path} is not what was sealed.")
        path = to / PurePosixPath(entry.path).relative_to(_FOLDER)
        with on_this_machine(to):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return to


def packages_in(store: Store, manifest: Manifest) -> Packages | None:
    """The packages that a bundle's code runs with; None if they are Trainwright's own. Check the bundle first."""
    paths = {f"{_FOLDER}/{name}": name for name in (environments.SEALED, environments.INSTALL)}
    present = [file.path for file in manifest.files if file.path in paths]
    read = {paths[path]: store.read_sealed(manifest, path) for path in present}
    return Packages.of_files(read, manifest.uri) if read else None


def changed_parts(store: Store, before: Ref, now: Ref) -> list[str]:
    """What differs between two bundles of what their digests cover: `environment`, `code` or both.

    `code` if one of them cannot be read.
    """
    try:
        old, new = (_covered_by(store.manifest(ref)) for ref in (before, now))
    except (FileNotFoundError, CorruptError):
        return ["code"]
    is_other = old.pop(environments.SEALED, None) != new.pop(environments.SEALED, None)
    return [part for part, changed in {"environment": is_other, "code": old != new}.items() if changed]


def _covered_by(manifest: Manifest) -> dict[str, str]:
    """Digests of the files that a bundle's digest covers; by its provenance, of those that are not Python's."""
    named = manifest.provenance.get(_NAMED)
    digests = {file.path.removeprefix(f"{_FOLDER}/"): file.blake3 for file in manifest.files}
    python = {name: value for name, value in digests.items() if name.endswith(".py")}
    return python | (named if isinstance(named, dict) else {})


def check_bundle(store: Store, manifest: Manifest, code_digest: str | None = None) -> None:
    """Raise CorruptError unless the files of a bundle match its name, and `code_digest` if that is given.

    The seal does not prove it, because anyone who can write to the store can seal other code. The name is a digest.
    """
    path = layout.manifest(manifest.uri)
    name = manifest.uri.removeprefix(f"{KIND}/").partition("-")[0]
    digests = {file.path.removeprefix(f"{_FOLDER}/"): file.blake3 for file in manifest.files}
    if manifest.kind != KIND or not all(file.path.startswith(f"{_FOLDER}/") for file in manifest.files):
        raise CorruptError(f"{path} is not the manifest of a bundle of code.", details={"file": path})
    python = {name: value for name, value in digests.items() if name.endswith(".py")}
    for apart in _coverings(store, manifest, digests):
        # What the bundle records never stands for a file that it has: other code would have the digest of the old.
        covered = python | apart | {name: digests[name] for name in digests.keys() & apart.keys()}
        if _name_digest(digests, covered) == name:
            if manifest.settings.get("digest") != digest(covered) or code_digest not in (None, digest(covered)):
                break
            return
    raise CorruptError(
        f"{manifest.uri} does not hold the code that its name, or what refers to it, stands for: it was changed and "
        "sealed again.",
        details={"file": path},
    )


def _name_digest(digests: Mapping[str, str], covered: Mapping[str, str]) -> str:
    """The name of a bundle: a digest over all of its files, and over what its digest covers."""
    return digest({"files": digests, "named": covered})[:KEY_LENGTH]


def _coverings(store: Store, manifest: Manifest, digests: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """What the digest may cover besides the `.py` files: what the bundle records, else every possible set.

    None of these is trusted: the name of the bundle decides.
    """
    recorded = manifest.provenance.get(_NAMED)
    if isinstance(recorded, dict):
        yield recorded
        return
    others = [name for name in digests if not name.endswith(".py")]
    texts = _texts_of_run(store, str(manifest.provenance.get("run_id")))
    tries = (
        {name: digests[name] for name in chosen}
        for pool in ([name for name in others if name in texts], others)
        for size in range(len(pool) + 1)
        for chosen in itertools.combinations(pool, size)
    )
    # Each try is a digest over all files.
    yield from itertools.islice(tries, min(_MOST_COVERINGS, _MOST_DIGESTS // max(1, len(digests))))


def _texts_of_run(store: Store, run_id: str) -> set[str]:
    """All texts in a run's resolved inputs, including names of files; none if the inputs cannot be read."""
    try:
        return {text.removeprefix("./") for text in texts_in(store.read_json(layout.resolved(run_id)))}
    except (FileNotFoundError, CorruptError, UsageError):
        return set()


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value, also names of fields."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one


def refuse_our_names(root: Path, names: Iterable[str]) -> None:
    """UsageError if one of the project's files makes a top-level package or module with one of our names."""
    for name in sorted(names):
        first = PurePosixPath(name).parts[0]
        if first == environments.FOLDER:
            raise UsageError(f"{root / name} is in the place of Trainwright's own files.", remedy="Rename its folder.")
        if name.endswith(".py") and first.removesuffix(".py") in OUR_NAMES:
            ours = first.removesuffix(".py")
            raise UsageError(
                f"{root / first}: a top-level {'module' if first.endswith('.py') else 'package'} called {ours!r} "
                f"would hide Trainwright's own.",
                remedy=f"Nest it: move it to {root.name}/my_project/{first} and write my_project.{ours} wherever "
                f"{ours} was imported or named.",
            )


def _named(extra: Iterable[Path]) -> list[Path]:
    paths = [Path(path).resolve() for path in extra]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}, which the spec names, does not exist.", remedy="Correct the path in the spec.")
    return paths


def _name_of(path: Path, root: Path) -> str:
    # Outside the project only the content counts: its location on another machine must not change the key.
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return f"//{path.name}/{blake3(_read(path)).hexdigest()}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}, a file of the project, cannot be read ({error.strerror}).",
            remedy="Give this user permission to read it, or name it in .gitignore.",
        ) from error
