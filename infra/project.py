"""The user's project: which of its files are code, whether a spec's classes exist, and the files beside a pipeline.

Code is packed; data, secrets and links that leave the project are not. Data is recognised by its name, stores and
hand-offs by their content, and DVC's outputs by their files. A file that the spec names by its exact path under
`code.include` is always packed; a glob there never brings in a secret, a source or such a link.

A secret is recognised by its file's or folder's name. Words are compared whole, so that a tokenizer is not taken for a
token. Patterns such as `*.env` and `host_key` count too, because `code.include` brings in a file that is left out by
mistake. Tags and addresses have a narrower rule (`data_contracts.pipeline_spec.data`), environment variables a wider
one (`infra.processes.environment`).

Nothing here imports the user's code: that classes and functions exist is seen in the sources' syntax trees. The files
beside a pipeline connect it to Prefect, DVC and the workflows of CI hosts; they are made of this repository's own
files, which its tests run or hold against published schemas.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import glob
import importlib.machinery
import logging
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import yaml

from data_contracts.errors import UsageError
from data_contracts.expressions import syntax_tree
from data_contracts.foreign_files import parse_json, read_plain
from infra import audit, scratch
from infra.audit import revision, run_git
from infra.files import TAG
from infra.processes.processes import CODE_ROOT
from infra.scratch import NOTE, PREFIX
from infra.settings import state_folder
from infra.store import Store
from infra.written_files import WrittenFiles

log = logging.getLogger("trainwright")
MAX_DATA_BYTES = 2**20
_SKIPPED = {"__pycache__", "node_modules", "venv", "site-packages"}
SECRET = "its name looks like a secret's"
SOURCE = "it is a source of data"
WRITTEN = "Trainwright wrote it"
LINK = "it is a link to what is not packed"
HANDOFF = "it is a hand-off"
TRACKED_DATA = "DVC tracks it as data"
STORE = "it lies in a store"
HIDDEN = "it is hidden, or below a hidden folder"
LARGE = f"it is larger than {MAX_DATA_BYTES >> 20} MiB"
IGNORED = "Git ignores it"
WHEEL = "it is a wheel, and no machine installs from the code bundle"
DATA = "it is data, and there is no Git repository that says otherwise"


@dataclass(frozen=True)
class LeftOut:
    """A file of the project that is not packed: its path below the project's root, size and the reason."""

    path: str
    bytes: int
    why: str


@dataclass(frozen=True)
class ProjectFiles:
    """The files that are packed and those that are not.

    Attributes:
        packed: files by their names in the bundle.
        included: the names among them that `code.include` brought in or names.
        counted: the names among them whose change makes a stage run again; reuse ignores the others.
        left_out: sorted by path; a folder that Git ignores or Trainwright wrote as a whole is one entry, without its
            size.
    """

    packed: dict[str, Path]
    included: set[str]
    left_out: list[LeftOut]
    counted: set[str]


def choose(
    root: Path,
    store: Store,
    *,
    named: Iterable[Path] = (),
    include: Sequence[str] = (),
    sources: Iterable[Path] = (),
    environment: bool = False,
) -> ProjectFiles:
    """The files of the project at `root` that are packed.

    Args:
        named: files that the spec names elsewhere, such as a vocabulary in an argument: packed unless guarded.
        include: `code.include` of the spec, below `root`.
        sources: local files that are the run's data.
        environment: whether the spec has an environment. If so, wheels are packages to install, not code.

    Raises:
        UsageError: Git does not say what it ignores, an exact path of `include` does not exist, a named file is one
            that only `include` may bring in, or Trainwright's own files lie in `root` itself.
    """
    tracked = _tracked(root)
    listed = sorted(tracked) if tracked else list(_walked(root))
    wanted = [Path(os.path.abspath(path)) for path in named]
    judge = _Judge(root, store, wanted, sources, listed, git=bool(tracked), environment=environment)
    packed: dict[str, Path] = {}
    left = {one.path: one for one in _ignored(root)} if tracked else {}
    for path in listed:
        if (folder := judge.our_folder(path)) is not None:
            left[f"{_name(folder, root)}/"] = LeftOut(f"{_name(folder, root)}/", 0, WRITTEN)
        elif (why := judge.why_not(path)) is None:
            packed[_name(path, root)] = path
        elif why and os.path.lexists(path):
            left[_name(path, root)] = LeftOut(_name(path, root), path.lstat().st_size, why)
    included, guarded = _included(root, include, judge)
    _warn_of_changed(judge, {name: path for name, path in packed.items() if name not in included})
    packed |= _named(wanted, root, judge, included)
    packed |= included
    left |= guarded
    code = {name for name in packed if name.endswith(".py")}
    arguments = {_name(path.resolve(), root) for path in wanted if path.resolve().is_relative_to(root)}
    left_out = [one for name, one in sorted(left.items()) if name not in packed]
    return ProjectFiles(packed, set(included), left_out, code | set(included) | arguments)


class _Judge:
    """Decides whether a file is packed, and gives the reason if it is not."""

    def __init__(
        self,
        root: Path,
        store: Store,
        named: list[Path],
        sources: Iterable[Path],
        listed: list[Path],
        *,
        git: bool,
        environment: bool,
    ) -> None:
        self._root, self._git, self._environment = root, git, environment
        self._named = {path.resolve() for path in named}
        self._sources = {one for path in sources for one in (Path(os.path.abspath(path)), path.resolve())}
        self._inodes = {one for path in self._sources if (one := _inode(path))}
        self._stores = {Path(store.uri).resolve()} if store.is_local else set()
        # A store at the project's root, beside the code, is not all that is there.
        stores = {path.parent for path in listed if path.name == "store.json" and is_store(path)}
        self._stores |= stores - {root}
        self._tracked = {target for path in listed for target in dvc_outs(path)}
        self._listed = {path.resolve() for path in listed if not path.is_symlink()}
        self.written = WrittenFiles()
        self._our_folders = dict.fromkeys(_folders_of_machine(root), True)

    def why_not(self, path: Path) -> str | None:
        """The reason; None for a file that is packed, "" for a file that need not be reported."""
        parts = path.relative_to(self._root).parts
        if any(part in _SKIPPED for part in parts):
            return ""
        if any(part.startswith(".") for part in parts):
            return HIDDEN
        if guarded := self.guarded(path):
            return guarded
        if path.suffix == ".py":
            return None if path.is_file() and not self._in_store(path) else ""
        if self._in_store(path):
            return STORE
        if not path.is_file():
            return ""
        if any(one in self._tracked for one in (path, *path.parents)):
            return TRACKED_DATA
        if self._environment and path.suffix == ".whl":
            return WHEEL
        if path.stat().st_size > MAX_DATA_BYTES:
            return LARGE
        if not self._git and is_data(path.name.lower()):
            return DATA
        return HANDOFF if is_handoff(path) else None

    def guarded(self, path: Path) -> str | None:
        """The reason if only an exact path under `code.include` can bring the file in, else None."""
        if is_secret(PurePosixPath(_name(path, self._root))):
            return SECRET
        if self.our_folder(path) is not None or self.written.has(path):
            return WRITTEN
        # A hard link to a source is the source under another name.
        if path.suffix != ".py" and (path in self._sources or _inode(path) in self._inodes):
            return SOURCE
        try:
            target = path.resolve()
        except RuntimeError:  # a link that leads to itself
            return LINK
        return None if target == path else self._link(target)

    def _link(self, target: Path) -> str | None:
        """LINK unless the link leads to a packed file: its name says nothing about its target."""
        if not target.is_relative_to(self._root):
            return LINK
        if target in self._named and not self.guarded(target):
            return None
        return LINK if target.exists() and (target not in self._listed or self.why_not(target) is not None) else None

    def our_folder(self, path: Path) -> Path | None:
        """The uppermost folder of the project above a file that Trainwright wrote as a whole."""
        for folder in reversed(path.relative_to(self._root).parents[:-1]):
            place = self._root / folder
            if place not in self._our_folders:
                self._our_folders[place] = is_our_folder(place)
            if self._our_folders[place]:
                return place
        return None

    def _in_store(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._stores)

    def is_not_code(self, path: Path) -> bool:
        """Whether a file is in a cache, an environment or a store, from which no glob brings in a file."""
        above = [one for one in path.parents if one.is_relative_to(self._root) and one != self._root]
        environment = any((one / "pyvenv.cfg").exists() for one in above)
        return environment or self._in_store(path) or any(one.name in _SKIPPED for one in above)


_DATA = {
    ".arrow", ".avro", ".bin", ".ckpt", ".csv", ".db", ".dta", ".duckdb", ".feather", ".h5", ".hdf5", ".ipc", ".jsonl",
    ".lmdb", ".mat", ".mdb", ".ndjson", ".npy", ".npz", ".onnx", ".orc", ".parquet", ".pickle", ".pkl", ".pq", ".pt",
    ".pth", ".rds", ".safetensors", ".sav", ".sqlite", ".sqlite3", ".tfrecord", ".tsv", ".xls", ".xlsx",
    ".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst",
    ".avi", ".bmp", ".flac", ".gif", ".jpeg", ".jpg", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".png", ".tif", ".tiff",
    ".wav", ".webm", ".webp", ".ipynb", ".log", ".mbox",
}  # fmt: skip
_DATA_NAMES = ("core", "core.[0-9]*", "*dump*.sql", "*.log.[0-9]*")


def is_data(name: str) -> bool:
    """Whether a file, or the original of a copy (`rows.csv.bak`), has the name of data."""
    original = without_copy(name)
    endings = {PurePosixPath(one).suffix for one in (name, original, original.removesuffix(".txt"))}
    return not _DATA.isdisjoint(endings) or any(fnmatchcase(original, pattern) for pattern in _DATA_NAMES)


def is_store(path: Path) -> bool:
    """Whether a `store.json` belongs to a store, and is not a file of the user's."""
    about = _json(path)
    return isinstance(about, dict) and {"made", "pointers", "schema"} <= about.keys()


def is_our_folder(folder: Path) -> bool:
    """Whether Trainwright wrote all of a folder: it is marked, a temporary folder or an export."""
    if (folder / TAG).is_file() or (folder.name.startswith(PREFIX) and (folder / NOTE).is_file()):
        return True
    about = _json(folder / "export.json")
    return isinstance(about, dict) and {"target", "version_ref", "checkpoint"} <= about.keys()


def is_handoff(path: Path) -> bool:
    """Whether a stage command's `--out` wrote the file: it changes with each run and is not code."""
    if path.suffix != ".json":
        return False
    about = _json(path)
    if not isinstance(about, dict) or not {"schema_version", "ref"} <= about.keys():
        return False
    return about["ref"] is None or (isinstance(about["ref"], dict) and about["ref"].keys() == {"uri", "id", "seal"})


def _json(path: Path) -> object:
    try:
        return parse_json(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return None


def dvc_outs(path: Path) -> Iterator[Path]:
    """The files and folders that a `.dvc` file, a `dvc.yaml` or a `dvc.lock` names as outputs or tracked data."""
    if path.suffix != ".dvc" and path.name not in ("dvc.yaml", "dvc.lock"):
        return
    try:
        about = yaml.safe_load(read_plain(path))
        stages = [about] if path.suffix == ".dvc" else list(about.get("stages", {}).values())
        for stage in stages:
            done = stage.get("do", stage)
            for out in [one for kind in ("outs", "metrics", "plots") for one in done.get(kind, [])]:
                # In dvc.yaml an output with options is a mapping from its path to them.
                name = out.get("path", next(iter(out))) if isinstance(out, dict) else out
                yield Path(os.path.abspath(path.parent / str(done.get("wdir", ".")) / str(name)))
    except (OSError, ValueError, AttributeError, TypeError, StopIteration, RecursionError, yaml.YAMLError):
        return


def _folders_of_machine(root: Path) -> Iterator[Path]:
    """Folders of the project for state and temporary files; UsageError if the state folder is the project itself."""
    if is_our_folder(root) or state_folder().resolve() == root:
        raise UsageError(
            f"Trainwright's own files lie in the project's root {root}, where they cannot be told from code.",
            remedy="Name another folder for them, with TRAINWRIGHT_HOME or the command's own option, and move them.",
        )
    for place in (str(state_folder()), scratch.default_root(), os.environ.get("PREFECT_HOME")):
        if place and (folder := Path(place).resolve()) != root and folder.is_relative_to(root):
            yield folder


def _warn_of_changed(judge: _Judge, packed: Mapping[str, Path]) -> None:
    """Say which files are packed although Trainwright wrote them: their user has changed or replaced them."""
    for name, path in packed.items():
        if judge.written.had(path):
            log.warning(
                "%s is packed as code: Trainwright wrote a file there, but its content has been changed since. If it "
                "is data, name it in .gitignore or move it; if it is code, add it to code.include.",
                name,
            )


def _named(paths: Sequence[Path], root: Path, judge: _Judge, included: Mapping[str, Path]) -> dict[str, Path]:
    """The files in the project that the spec names elsewhere; UsageError for one that only `include` may bring in."""
    packed: dict[str, Path] = {}
    for path in paths:
        if not path.is_relative_to(root):
            continue
        if _name(path, root) not in included and (why := judge.guarded(path)):
            name = _name(path, root)
            raise UsageError(
                f"{name}, which an argument in the spec names, is not packed: {why}.",
                remedy=f"If it may be stored, add code.include: [{name}] to the spec; otherwise let the code read "
                "it from elsewhere.",
            )
        if path.resolve().is_relative_to(root):
            packed[_name(path.resolve(), root)] = path.resolve()
    return packed


def _included(root: Path, patterns: Sequence[str], judge: _Judge) -> tuple[dict[str, Path], dict[str, LeftOut]]:
    """What `code.include` brings in, and what its globs match but may not bring in."""
    included: dict[str, Path] = {}
    guarded: dict[str, LeftOut] = {}
    for number, pattern in enumerate(patterns):
        if (root / pattern).is_file():
            included[pattern] = root / pattern
            continue
        inside = f"{glob.escape(pattern)}/**" if (root / pattern).is_dir() else pattern
        names = sorted(glob.glob(inside, root_dir=root, recursive=True))
        matches = [root / name for name in names if (root / name).is_file() and not judge.is_not_code(root / name)]
        kept = {_name(path, root): path for path in matches if judge.guarded(path) is None}
        for path in matches:
            if why := judge.guarded(path):
                guarded[_name(path, root)] = LeftOut(_name(path, root), path.lstat().st_size, why)
        if not kept and not matches:
            raise UsageError(
                f"code.include.{number}: no file matches {pattern} (from the project's root {root}).",
                remedy="Correct the path or glob.",
            )
        if not kept:
            name = _name(matches[0], root)
            raise UsageError(
                f"code.include.{number}: {pattern} matches {name}, which a glob never packs: {guarded[name].why}.",
                remedy="If it may be stored, name it by its exact path.",
            )
        included |= kept
    return included, guarded


# How libraries say that they did not find a file.
NOT_FOUND = re.compile(
    r"no such file|file ?not ?found|(does not|doesn't) (exist|appear)|not found|incorrect path|repo id|"
    r"(can ?not|can't|could not|unable to|failed to|error) (be )?(open|read|load|find|locat|access)",
    re.IGNORECASE,
)


def not_found_in(text: str, left_out: Sequence[str]) -> list[str]:
    """The left-out files or folders that the text of an exception says were not found; folders end with `/`."""
    if NOT_FOUND.search(text) is None:
        return []
    exact = [path for path in left_out if mentions(text, path)]
    return exact or [
        path
        for path in left_out
        for folder in map(str, (PurePosixPath(path), *PurePosixPath(path).parents))
        if folder != "." and re.search(rf"['\"/]{re.escape(folder)}/?['\"]", text)
    ]


def mentions(text: str, path: str, *, after_folder: bool = True) -> bool:
    """Whether a text has a path, or one below it if it is a folder's, as a whole name; a folder may stand before it."""
    begin = r"(?<![\w.-])" if after_folder else r"(?<![\w./-])"
    end = "" if path.endswith("/") else r"(?![\w.-])"
    return re.search(f"{begin}{re.escape(path)}{end}", text) is not None


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _inode(path: Path) -> tuple[int, int] | None:
    """A file's identity under all its names; None if it does not exist."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _ignored(root: Path) -> Iterator[LeftOut]:
    """What Git ignores below `root`, a whole folder as one entry; hidden and cached files are not reported."""
    for path in _git(root, "--others", "--ignored", "--exclude-standard", "--directory"):
        parts = path.relative_to(root).parts
        if os.path.lexists(path) and not any(part.startswith(".") or part in _SKIPPED for part in parts):
            folder = path.is_dir() and not path.is_symlink()
            name = f"{_name(path, root)}/" if folder else _name(path, root)
            yield LeftOut(name, 0 if folder else path.lstat().st_size, IGNORED)


def _tracked(root: Path) -> list[Path]:
    """What Git tracks or would track below `root`; [] without Git or a repository."""
    if shutil.which("git") is None or not audit.in_repository(root):
        return []
    return _git(root, "--cached", "--others", "--exclude-standard")


_GIT_TIMEOUT_S = 60


def _git(root: Path, *which: str) -> list[Path]:
    """The files that `git ls-files` lists.

    UsageError if Git fails in a repository: without its answer, ignored files (including secrets) would be packed.
    """
    try:
        done = run_git(root, "ls-files", "-z", *which, timeout_s=_GIT_TIMEOUT_S)
        message = done.stderr.decode(errors="replace").strip()
    except subprocess.TimeoutExpired:
        done, message = None, f"it had not answered after {_GIT_TIMEOUT_S} s"
    except subprocess.SubprocessError as error:
        done, message = None, str(error)
    if done is None or done.returncode != 0:
        raise UsageError(
            f"Git does not say which files of the project {root} it ignores: {message.partition(chr(10))[0]}.",
            remedy=f"Fix the error that `git -C {root} status` shows, so that no ignored file is packed.",
        )
    return [root / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED
            and not (here / name / "pyvenv.cfg").exists()
            and not (here / name / "store.json").exists()
        )
        yield from (here / name for name in sorted(files))


def is_in_project(root: Path, dotted: str) -> bool:
    """Whether the first part of a dotted path is a module or package of the project."""
    first = dotted.partition(".")[0]
    return _is_package(root / first) or (root / f"{first}.py").is_file()


def require_class(root: Path, dotted: str, installed: Path | None = None) -> None:
    """Check, without importing anything, that `package.module.Name` names something in the project or installed.

    Args:
        installed: the folder of packages of an environment, which come before those of this process; default: none.

    Raises: UsageError if the module's file or the name in it does not exist. A file that cannot be parsed passes,
    because only running it gives its author a traceback.
    """
    parts = dotted.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{dotted!r} is not the path of a class or function.",
            remedy="Write it as module.Class or package.module.Class.",
        )
    located = _locate(parts, root, installed)
    if located is None:
        return
    source, module, rest = located
    if not rest:
        raise UsageError(f"{dotted!r} names a module.", remedy=f"Name a class in it, as in {dotted}.MyModel.")
    names = _top_level_names(source) if source is not None else set()
    if names is None or rest[0] in names:
        return
    near = difflib.get_close_matches(rest[0], names, n=1)
    hint = (
        f"Did you mean {module}.{near[0]}?" if near else "Check the spelling, and that the file is not ignored by Git."
    )
    if source is None or len(rest) > 1:
        raise UsageError(f"{dotted!r}: there is no module {module}.{rest[0]}.", remedy=hint)
    raise UsageError(f"{dotted!r}: there is no {rest[0]} in {source}.", remedy=hint)


def _locate(parts: list[str], root: Path, installed: Path | None) -> tuple[Path | None, str, list[str]] | None:
    """The source of the longest prefix of `parts` that is a module, its name and the rest; None if it has no source."""
    here = root
    if not is_in_project(root, parts[0]):
        places = None if installed is None else [str(installed), *sys.path]
        found = importlib.machinery.PathFinder.find_spec(parts[0], places)
        if parts[0] in sys.builtin_module_names:
            return None
        if found is None:
            raise UsageError(
                f"{'.'.join(parts)!r}: there is no module {parts[0]} in {root}, and none is installed.",
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
    """Names that a module's top level binds; None if its text does not show them."""
    try:
        tree = syntax_tree(source.read_bytes())
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
        for part in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, part, [])
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _top_level(inner)


SPEC = "pipeline.yaml"
_EXAMPLE = "examples/digits/"
_ELSEWHERE = """\
# Not the project's folder: Prefect puts the one that is named here on the import path of the run's process, which has
# passwords and keys that the project's code does not get.
pull:
"""


def project_extras(extras: Sequence[str], name: str, folder: Path) -> dict[Path, str]:
    """The content of each file beside a pipeline, by its path; workflows lie at the root of the Git repository.

    Args:
        extras: keys of `EXTRAS`.
        name: of the pipeline, which is also its deployment's.
        folder: the project's, whose spec is `pipeline.yaml`; it need not exist yet.

    Raises: UsageError if a workflow cannot name the spec.
    """
    return dict(EXTRAS[one](name, folder) for one in extras)


def _github(name: str, folder: Path) -> tuple[Path, str]:
    root, spec = _in_repository(folder)
    own = "" if root == folder else f"-{name}"
    return root / f".github/workflows/trainwright{own}.yml", _workflow("github", name, spec)


def _gitlab(name: str, folder: Path) -> tuple[Path, str]:
    root, spec = _in_repository(folder)
    return root / ".gitlab-ci.yml", _workflow("gitlab", name, spec)


def _in_repository(folder: Path) -> tuple[Path, str]:
    """The root of the repository that a folder lies in, or else the folder, and the spec's path from there."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if answer := run_git(there, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n"):
            root = Path(os.fsdecode(answer))
            if folder.resolve() != root.resolve():
                return root, (folder.resolve().relative_to(root.resolve()) / SPEC).as_posix()
    return folder, SPEC


def _workflow(host: str, name: str, spec: str) -> str:
    if not re.fullmatch(r"[\w./-]+", spec):
        sentence = f"{spec!r} has characters that the commands of a workflow cannot name."
        raise UsageError(sentence, remedy="Rename the folder: letters, digits, `_`, `.` and `-`.")
    text = (CODE_ROOT / "examples/ci" / f"{host}.yml").read_text()
    commit, _ = revision(CODE_ROOT)
    text = re.sub(r"\bREVISION\b", commit or "HEAD", text)
    return text.replace("ci SPEC", f"ci {spec}").replace("PIPELINE", name)


def _prefect(name: str, folder: Path) -> tuple[Path, str]:
    """The deployment of one pipeline, as prefect.yaml has it for the digits."""
    text = (CODE_ROOT / "prefect.yaml").read_text()
    begin, end = text.index("name: trainwright\n"), text.index("\n  - <<: *retrain\n    name: stdlib-gpt")
    head = (
        "# `prefect deploy --all`, called in this folder, deploys the pipeline; `trainwright up` makes the work pool\n"
        "# and starts its worker. A scheduled run's time is its idempotency key, so a night is never trained twice.\n\n"
    )
    body = (
        text[begin:end]
        .replace("pull:\n", _ELSEWHERE)
        .replace('directory: "{{ checkout.stdout }}"', "directory: /")
        .replace(f"{_EXAMPLE}pipeline.yaml", '"{{ checkout.stdout }}/pipeline.yaml"')
        .replace("name: digits", f'name: "{name}"')
        .replace("pipeline:digits", f"pipeline:{name}")
    )
    body = body.replace("Handwritten digits, trained with DDP.", f"Runs the pipeline {name}.")
    return folder / "prefect.yaml", head + body


def _dvc(_: str, folder: Path) -> tuple[Path, str]:
    """The line as DVC stages, as dvc.yaml has it for the digits; the project prepares its data itself."""
    text = (CODE_ROOT / "dvc.yaml").read_text()
    begin, stages = text.index("stages:\n"), text.index("  validate:\n")
    head = (
        "# The pipeline as DVC stages: `dvc repro` runs what changed; `dvc metrics show` and `dvc plots show` give\n"
        "# metrics and curves. The outs are hand-offs; what they point to lies sealed in the store, which is never a\n"
        "# DVC out. Name in deps what your pipeline reads.\n"
    )
    body = text[begin : begin + len("stages:\n")] + text[stages:]
    return folder / "dvc.yaml", head + body.replace(_EXAMPLE, "")


EXTRAS: dict[str, Callable[[str, Path], tuple[Path, str]]] = {
    "prefect": _prefect,
    "dvc": _dvc,
    "github": _github,
    "gitlab": _gitlab,
}


# Whole names of files or folders, in lower case.
_SECRET_NAMES = (
    "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.keytab", "*.gpg", "*.ovpn",
    "*.jwt", "wg[0-9]*.conf", ".env*", "*.env", "*.env.*", ".aws", ".ssh", ".gnupg", ".kube", ".azure", ".docker",
    ".gcloud", ".vault*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*[_-]rsa", "*[_-]rsa.*", "*[_-]dsa",
    "*[_-]dsa.*", "*[_-]ecdsa", "*[_-]ecdsa.*", "*[_-]ed25519", "*[_-]ed25519.*", ".netrc", "netrc", "_netrc",
    ".pgpass", "pgpass*", ".my.cnf", "my.cnf", "pip.conf", "pip.ini", ".npmrc", ".pypirc", ".htpasswd", "htpasswd",
    ".dockercfg", ".dockerconfigjson", ".boto", ".s3cfg", "s3cfg", ".rclone.conf", "rclone.conf", "kubeconfig*",
    "kube-config*", "kube_config*", "*.kubeconfig", "kaggle.json", "auth.json", "adc.json", "*adminsdk*", "jwt",
    "jwt.*", "oauth.*", "oauth2.*", "cookies.txt", "cookies.json", "cookies.sqlite", "*.tfstate", "*.tfstate.*",
    "*.tfvars", "*.tfvars.json", "token", "token.*", "*.token", "key.*", "keys.json", "keys.txt", "tokens.json",
    "tokens.yaml", "tokens.yml", "tokens.toml", "tokens.ini", "tokens.env",
)  # fmt: skip
# A folder and a file in it.
_SECRET_PATHS = ("docker/config.json", "kube/config")
# Names are also checked without these endings: a copy of a secret is a secret.
_COPIES = ("~", ".backup", ".bak", ".old", ".orig", ".save", ".swo", ".swp", ".tmp")
# Anywhere in a word: `mypassword`, `PRODSECRETS`. A secretary, a secretion and a secretome do not match.
_SECRET_PARTS = re.compile(r"passw|secret(?!ar|i|o)|credential|serviceaccount")
# Whole words, separated by `_`.
_SECRET_WORDS = r"[a-z]*creds|cred|[a-z]*passwd|passphrases?|pwd|pat|service_accounts?"
_SECRET_WORDS += r"|(?:admin|db|root|smtp|user|vault)_?pass|(?:firebase|gcloud|gcp|google)_sa"
# Words whose keys and tokens are secret: those of a table, a piano or a map are not.
_OWNERS = "access|account|admin|anthropic|api|auth|aws|azure|bearer|bot|client|cohere|decryption|deploy|encryption|gcp"
_OWNERS += "|gh|git|github|gitlab|google|gpg|groq|hf|host|huggingface|license|live|login|master|mistral|my|oauth"
_OWNERS += "|openai|personal|pgp|priv|private|prod|refresh|root|sa|secret|server|service|service_account|session"
_OWNERS += "|signing|slack|ssh|ssl|stripe|tls|wandb"
_SECRET_FILE = re.compile(rf"(?:^|_)(?:{_SECRET_WORDS}|(?:{_OWNERS})_?(?:keys?|tokens?))(?:_|$)")
_TOKEN = re.compile(r"(?:^|_)[a-z]*tokens?(?:_|$)")
# With one of these words beside it, a token is a piece of text: `special_tokens_map.json`, `token_types.txt`.
_TEXT = "added|bos|char|class|cls|control|corpus|count|counts|drop|embedding|embeddings|end|eos|extra|frequencies"
_TEXT += "|frequency|id|ids|image|index|label|labels|length|lengths|list|map|mask|max|merges|num|pad|reserved|sep"
_TEXT += "|special|start|stop|subtoken|subtokens|subword|text|train|type|types|unk|unknown|val|valid|vocab|vocabulary"
_TEXT += "|word|words"
_TEXT_TOKEN = re.compile(rf"(?:^|_)(?:{_TEXT})(?:_|$)")
# The plural alone is a vocabulary, unless `_SECRET_NAMES` has it with the extension of a configuration.
_VOCABULARY = re.compile(r"tokens(?:_[a-z]+)?")
# `prodApiKey.json` is `prod_api_key.json`, `token1.txt` is `token_txt`; every character but a letter separates words.
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_BETWEEN = re.compile(r"[^a-z]+")


def is_secret(path: PurePosixPath) -> bool:
    """Whether a folder or the file in the path is named like a secret. Python code never is."""
    if path.suffix == ".py":
        return False
    parts = [_plain(part) for part in path.parts]
    return "/".join(parts[-2:]).casefold() in _SECRET_PATHS or any(map(_is_named_like_secret, parts))


def without_copy(name: str) -> str:
    """A file's name without the endings of a copy: `rows.csv` for `rows.csv.bak~`."""
    while (ending := next((one for one in _COPIES if name.casefold().endswith(one)), None)) and len(name) > len(ending):
        name = name[: -len(ending)]
    return name


def _plain(name: str) -> str:
    """A name as a person sees it: no accents, no invisible characters, ordinary letters for wide ones."""
    return "".join(one for one in unicodedata.normalize("NFKD", name) if unicodedata.category(one) not in ("Mn", "Cf"))


def _is_named_like_secret(part: str) -> bool:
    if any(fnmatchcase(name, pattern) for name in _originals(part.casefold()) for pattern in _SECRET_NAMES):
        return True
    words = _BETWEEN.sub("_", _CAMEL.sub("_", part).casefold()).strip("_")
    if _SECRET_PARTS.search(words) or _SECRET_FILE.search(words):
        return True
    is_text = _TEXT_TOKEN.search(words) or _VOCABULARY.fullmatch(words)
    return _TOKEN.search(words) is not None and not is_text


def _originals(name: str) -> Iterator[str]:
    """The name, and the names that it may be a copy of: `server.pem` for `server.pem.bak` and `server.pem.txt`."""
    yield name
    while (original := without_copy(name).removesuffix(".txt")) not in ("", name):
        name = original
        yield name
