"""Imports the user's code in a child process by dotted path from the project's root, and tells its failures from ours.

Torch-free. Our own modules are imported before the project goes to the front of `sys.path`, so that a user's `flows` or
`tasks` never hides ours.
"""

from __future__ import annotations

import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError, UserCodeError
from data_contracts.quoting import describe, format_links, links, withholds


def add_project(folder: Path | str) -> Path:
    """Put the unpacked project first on `sys.path`; call it after our modules are imported. Returns the real path."""
    root = Path(folder).resolve()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return root


@contextmanager
def borrowed(folder: Path, other: Path) -> Iterator[None]:
    """Import from `folder` inside, and forget its modules afterwards: later imports may come from `other`.

    If both are the same folder its modules stay.
    """
    root = add_project(folder)
    try:
        yield
    finally:
        if root != other.resolve():
            sys.path.remove(str(root))
            for name, module in list(sys.modules.items()):
                if _lies_below(module, root):
                    del sys.modules[name]


def load_class(dotted: str, base: type, field: str, root: Path) -> type:
    """The class that `dotted` names.

    Args:
        base: the class it must be derived from.
        field: the spec's field that names it, for the error's sentence.
        root: the project's root, whose frames a traceback shows.

    Raises:
        UsageError: it is not found, or is not a subclass of `base`.
        UserCodeError: the file that defines it raises on import.
    """
    loaded = _load(dotted, field, root)
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise UsageError(
            f"{field}: {dotted} is not {'an' if base.__name__[0] in 'AEIOU' else 'a'} {base.__name__}.",
            remedy=f"Name a class derived from {base.__module__.split('.')[0]}'s {base.__name__}.",
        )
    return loaded


def load_callable(dotted: str, args: Mapping[str, Any], field: str, root: Path) -> Callable[[Any], Any]:
    """The function that `dotted` names with keyword arguments `args` bound; errors as in `load_class`.

    If it raises when called, that is a UserCodeError with the user's traceback.
    """
    loaded = _load(dotted, field, root)
    if not callable(loaded):
        raise UsageError(f"{field}: {dotted} is not a function.", remedy="Name a function that takes a batch.")

    @functools.wraps(loaded)
    def call(batch: Any) -> Any:
        with user_code(f"{field} ({dotted})", root):
            return loaded(batch, **args)

    return call


def make_object(dotted: str, init_args: Mapping[str, Any], field: str, root: Path) -> Any:
    """An object of the class that `dotted` names; errors as in `load_class`.

    Raises:
        UsageError: the class does not take these arguments.
        UserCodeError: making it raises.
    """
    loaded = _load(dotted, field, root)
    if not isinstance(loaded, type):
        raise UsageError(f"{field}: {dotted} is not a class.", remedy="Name a class.")
    with user_code(f"{field} ({dotted})", root):
        try:
            return loaded(**init_args)
        except TypeError as error:
            # Without a further frame, the call itself was refused: the spec is wrong, not the code.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise UsageError(
                f"{field}: {dotted} cannot be made with its init_args: {describe(error, root)}.",
                remedy="Write `{class_path: …, init_args: {…}}` with the arguments of its __init__.",
            ) from error


@contextmanager
def user_code(what: str, root: Path) -> Iterator[None]:
    """Turn errors that the user's code raises inside into UserCodeError; errors of our tree and Ctrl-C pass unchanged.

    Args:
        what: the thing that was called, as it should stand in the sentence, such as `shards.transform (a.b)`.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except TrainwrightError as error:
        if not is_theirs(error, root):
            raise
        raise _theirs(what, error, root) from error
    # SystemExit too: if a library ends the process, the user's code has failed, not finished.
    except BaseException as error:
        raise _theirs(what, error, root) from error


def is_theirs(error: TrainwrightError, root: Path) -> bool:
    """Whether an error of our tree counts as the user's: its text may then quote data.

    The user's code raised it, or called the code that refused a value. Others, such as a preemption, pass through the
    user's frames and are not theirs.
    """
    frames = traceback.extract_tb(error.__traceback__)
    seen = frames if isinstance(error, UsageError) else frames[-1:]
    return withholds() and any(in_project(frame, root) for frame in seen)


def user_traceback(error: BaseException, root: Path) -> str:
    """The traceback of `error` with the frames in the project alone, or all frames if the project has none.

    Frames of libraries and of ours around the user's are left out; chained exceptions are kept.
    """
    whole = traceback.TracebackException.from_exception(error)
    if not any(in_project(frame, root) for link in links(whole) for frame in link.stack):
        return format_links(whole)
    for link in links(whole):
        link.stack = traceback.StackSummary.from_list([frame for frame in link.stack if in_project(frame, root)])
    return format_links(whole)


def user_line(error: BaseException | None, root: Path) -> str:
    """The user's line that raised, as part of a sentence; "" if none did."""
    while error is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if in_project(frame, root)]
        if frames:
            line = frames[-1]
            return f" in {Path(line.filename).relative_to(root)}:{line.lineno}"
        error = error.__cause__ or error.__context__
    return ""


def raised_in_project(error: BaseException, root: Path) -> bool:
    """Whether the traceback of `error` has a frame of the user's project."""
    return any(in_project(frame, root) for frame in traceback.extract_tb(error.__traceback__))


def _theirs(what: str, error: BaseException, root: Path) -> UserCodeError:
    return UserCodeError(f"{what} raised {describe(error, root)}.", user_traceback=user_traceback(error, root))


def _lies_below(module: Any, root: Path) -> bool:
    # Not getattr: some libraries' modules have any attribute. A package without __init__.py has no file, only folders.
    facts = getattr(module, "__dict__", {})
    places = [facts.get("__file__"), *(facts.get("__path__") or [])]
    return any(Path(place).is_relative_to(root) for place in places if place)


def in_project(frame: traceback.FrameSummary, root: Path) -> bool:
    """Whether a frame is of the user's own code."""
    path = Path(frame.filename)
    # A virtual environment inside the project holds libraries, not the user's code.
    return path.is_relative_to(root) and "site-packages" not in path.parts


def _load(dotted: str, field: str, root: Path) -> Any:
    module_name, _, name = dotted.rpartition(".")
    if not module_name:
        raise UsageError(f"{field}: {dotted!r} names no module.", remedy="Write it as package.module.Name.")
    try:
        with user_code(f"{field}: importing {module_name}", root):
            module = importlib.import_module(module_name)
    except UserCodeError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        # The named module itself is absent; a missing module that *it* imports is an error on import.
        if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise UsageError(
                f"{field}: {dotted} was not found: there is no module {missing}.",
                remedy=f"It is looked up from the project's root, {root.name or root}, and among installed packages.",
            ) from None
        raise
    try:
        return getattr(module, name)
    except AttributeError:
        raise UsageError(
            f"{field}: {dotted} was not found: module {module_name} has no {name}.", remedy="Correct the name."
        ) from None
