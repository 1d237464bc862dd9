"""The user's project as a sealed bundle of code: what is packed, its digest, how it is laid out again, what is in it.

Every node, retry and resume runs from the bundle, never from the folder that a person is editing. Nothing here
imports a user's module: classes are looked for in the sources' syntax trees.
"""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from blake3 import blake3

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from infra import audit
from infra.settings import on_this_machine
from infra.store import Store, layout

KIND = "code"
MAX_DATA_BYTES = 2**20
# Below a folder of its own, because a project may have a manifest.json too.
_FOLDER = "project"
OUR_NAMES = ("training", "infra", "data_contracts")
_CHECKOUT = Path(__file__).resolve().parents[1]
_LEFT_OUT = {"__pycache__", "node_modules", "venv", "site-packages"}
_SECRETS = (
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.env",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "netrc", "_netrc", "kubeconfig*", "*.kubeconfig",
    "credentials*", "secret.*", "secrets.*", "client_secret*", "client-secret*", "service-account*", "service_account*",
)  # fmt: skip
_GIT_TIMEOUT_S = 60


@dataclass(frozen=True)
class CodeBundle:
    """A sealed bundle.

    Attributes:
        ref: the sealed directory `code/<digest of all its files>`.
        digest: digest of its `.py` files and of what the spec names: what reuse keys contain of it.
        root: the project's folder that it was packed from.
    """

    ref: Ref
    digest: str
    root: Path


def project_root(spec_folder: Path) -> Path:
    """The nearest folder from the spec's up that holds `pyproject.toml` or `.git`, else the spec's folder itself.

    Trainwright's own checkout is nobody's project: a spec inside it stands for its own folder.
    """
    start = spec_folder.resolve()
    for folder in (start, *start.parents):
        if folder == _CHECKOUT:
            return start
        if (folder / "pyproject.toml").is_file() or (folder / ".git").exists():
            return folder
    return start


def pack(
    spec_folder: Path, store: Store, extra: Iterable[Path] = (), provenance: Mapping[str, Any] | None = None
) -> CodeBundle:
    """Seal the project of the spec in `spec_folder`; the same files give the same bundle.

    Left out: what Git ignores, hidden files and folders, virtual environments, caches, stores, likely secrets, and
    files other than `.py` above 1 MiB. `extra` (what the spec names) is always covered by the digest, and packed if
    it lies in the project. UsageError if a top-level package or module has one of our names, a file is not there, or
    Git does not say what it ignores.
    """
    root = project_root(spec_folder)
    named = _named(extra)
    chosen = {str(path.relative_to(root).as_posix()): path for path in _chosen(root, store)}
    refuse_our_names(root, chosen)
    chosen |= {path.relative_to(root).as_posix(): path for path in named if path.is_relative_to(root)}
    for name in chosen:
        layout.check_path(name, f"file's name in the project {root}")
    content = {name: _read(path) for name, path in sorted(chosen.items())}
    digests = {name: blake3(data).hexdigest() for name, data in content.items()}
    covered = {name: value for name, value in digests.items() if name.endswith(".py")}
    covered |= {_name_of(path, root): blake3(_read(path)).hexdigest() for path in named}
    # Two bundles may share a digest and differ in a README, so the directory goes by all of the files.
    code_digest, whole = digest(covered), digest({"files": digests, "named": covered})
    for uri in _undeleted(store, whole[:KEY_LENGTH]):
        try:
            return CodeBundle(store.verify(uri).ref, code_digest, root)
        except CorruptError as error:
            store.remove(uri, why=f"packed again, because {error.message}", by="pack")
        except FileNotFoundError:
            break
    writer = store.writer(uri)
    entries = [writer.put(f"{_FOLDER}/{name}", data) for name, data in content.items()]
    return CodeBundle(writer.seal(KIND, {"digest": code_digest}, dict(provenance or {}), entries), code_digest, root)


def _undeleted(store: Store, name: str) -> Iterator[str]:
    """The directories that a bundle of this name may have, in order, without those that are deleted."""
    return (uri for n in itertools.count() if store.claim(uri := layout.code(name, n)))


def unpack(store: Store, ref: Ref, to: Path) -> Path:
    """Lay a bundle out in the folder `to`, each file checked against the manifest; CorruptError names one that differs.

    A copy: code never runs from inside the store.
    """
    manifest = store.manifest(ref)
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


def refuse_our_names(root: Path, names: Iterable[str]) -> None:
    """UsageError if one of the project's files makes a top-level package or module with one of our names."""
    for name in sorted(names):
        first = PurePosixPath(name).parts[0]
        if name.endswith(".py") and first.removesuffix(".py") in OUR_NAMES:
            ours = first.removesuffix(".py")
            raise UsageError(
                f"{root / first}: a top-level {'module' if first.endswith('.py') else 'package'} called {ours!r} "
                f"would hide Trainwright's own.",
                remedy=f"Nest it: move it to {root.name}/my_project/{first} and write my_project.{ours} wherever "
                f"{ours} was imported or named.",
            )


def find_class(root: Path, dotted: str) -> None:
    """Check, without importing anything, that `package.module.Name` names something in the project or installed.

    UsageError if the module's file or the name in it is not there; a file that cannot be parsed passes, because only
    running it gives its author a traceback.
    """
    parts = dotted.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"class_path {dotted!r} is no class.", remedy="Write it as module.Class or package.module.Class."
        )
    located = _locate(parts, root)
    if located is None:
        return
    source, module, rest = located
    if not rest:
        raise UsageError(
            f"class_path {dotted!r} names a module.", remedy=f"Name a class in it, as in {dotted}.MyModel."
        )
    names = _top_level_names(source) if source is not None else set()
    if names is None or rest[0] in names:
        return
    near = difflib.get_close_matches(rest[0], names, n=1)
    hint = (
        f"Did you mean {module}.{near[0]}?" if near else "Check the spelling, and that the file is not ignored by Git."
    )
    if source is None or len(rest) > 1:
        raise UsageError(f"class_path {dotted!r}: there is no module {module}.{rest[0]}.", remedy=hint)
    raise UsageError(f"class_path {dotted!r}: there is no {rest[0]} in {source}.", remedy=hint)


def _named(extra: Iterable[Path]) -> list[Path]:
    paths = [Path(path).resolve() for path in extra]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}, which the spec names, is not there.")
    return paths


def _name_of(path: Path, root: Path) -> str:
    # Outside the project only the content counts: where a colleague keeps it must not change the key.
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


def _chosen(root: Path, store: Store) -> Iterable[Path]:
    store_folder = Path(store.uri).resolve() if store.is_local else None
    for path in _tracked(root) or _walked(root):
        parts = path.relative_to(root).parts
        if any(part.startswith(".") or part in _LEFT_OUT for part in parts):
            continue
        if any(PurePosixPath(parts[-1].lower()).match(pattern) for pattern in _SECRETS) and path.suffix != ".py":
            continue
        if store_folder is not None and path.is_relative_to(store_folder):
            continue
        if path.is_file() and (path.suffix == ".py" or path.stat().st_size <= MAX_DATA_BYTES):
            yield path


def _tracked(root: Path) -> list[Path]:
    """What Git tracks or would track below `root`; [] where there is no Git or no repository.

    UsageError if Git fails in a repository: without its word, ignored files (secrets among them) would be packed.
    """
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if shutil.which("git") is None or not audit.in_repository(root):
        return []
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_GIT_TIMEOUT_S)
        said = done.stderr.decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        done, said = None, f"it had not answered after {_GIT_TIMEOUT_S} s"
    if done is None or done.returncode != 0:
        raise UsageError(
            f"Git does not say which files of the project {root} it ignores: {said.partition(chr(10))[0]}.",
            remedy=f"Mend what `git -C {root} status` says, so that no ignored file is packed.",
        )
    return [root / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _walked(root: Path) -> Iterable[Path]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _LEFT_OUT
            and not (here / name / "pyvenv.cfg").exists()
            and not (here / name / "store.json").exists()
        )
        yield from (here / name for name in sorted(files))


def _locate(parts: list[str], root: Path) -> tuple[Path | None, str, list[str]] | None:
    """The source of the longest prefix of `parts` that is a module, its name and the rest; None if it has no source."""
    here = root
    if not _is_package(root / parts[0]) and not (root / f"{parts[0]}.py").is_file():
        found = importlib.machinery.PathFinder.find_spec(parts[0])
        if parts[0] in sys.builtin_module_names:
            return None
        if found is None:
            raise UsageError(
                f"class_path {'.'.join(parts)!r}: there is no module {parts[0]} in {root}, and none is installed.",
                remedy="Write the path from the project's root, the folder named above.",
            )
        if found.submodule_search_locations:
            here = Path(next(iter(found.submodule_search_locations))).parent
        elif found.origin:
            here = Path(found.origin).parent
    source: Path | None = None
    for depth, part in enumerate(parts):
        if _is_package(here / part):
            here = here / part
            source = here / "__init__.py" if (here / "__init__.py").is_file() else None
        elif (here / f"{part}.py").is_file():
            return here / f"{part}.py", ".".join(parts[: depth + 1]), parts[depth + 1 :]
        elif any(here.glob(f"{part}.*")):
            return None  # a compiled module
        else:
            return source, ".".join(parts[:depth]), parts[depth:]
    return source, ".".join(parts), []


def _is_package(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "__init__.py").is_file() or any(folder.rglob("*.py")))


def _top_level_names(source: Path) -> set[str] | None:
    """Names that a module's top level binds; None if that cannot be told from its text."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return None if {"*", "__getattr__"} & names else names


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, field, [])
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _top_level(inner)
