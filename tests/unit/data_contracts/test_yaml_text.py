"""What YAML may hold, what its values become, and which line an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from data_contracts.yaml_text import MAX_VALUES, parse, read_document
from tests.support.refusals import refusal


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-2.5e-1", -0.25),
        (".5", 0.5),
        ("1_000", 1000),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01 12:00:00", "2026-01-01 12:00:00"),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("yes", True),
        ("~", None),
        ("", None),
        ("# only a comment", None),
        ("{1: a, no: b, 2026-01-01: c}", {"1": "a", "no": "b", "2026-01-01": "c"}),
        ("[a, [b, {c: 1}]]", ["a", ["b", {"c": 1}]]),
        ("[0, -0, 0.5, 0x10, 10, 0b11]", [0, 0, 0.5, 16, 10, 3]),
        ("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}", {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}}),
        # Of several that are merged, the first wins, as YAML has it.
        ("- &a {x: 1}\n- &b {x: 2, z: 2}\n- {<<: [*a, *b]}", [{"x": 1}, {"x": 2, "z": 2}, {"x": 1, "z": 2}]),
    ],
)
def test_values(text: str, value: object) -> None:
    found = parse(text, "f.yaml").value
    assert found == value
    assert type(found) is type(value)


def test_a_mapping_written_once_and_used_twice_becomes_two() -> None:
    value = parse("a: &a {x: 1}\nb: *a", "f.yaml").value
    value["a"]["x"] = 2
    assert value["b"] == {"x": 1}


def test_places_are_the_lines_of_the_keys() -> None:
    document = parse("a:\n  b: 1\nlist:\n  - x\n  - y: 2\n    z: 3\nc: &c\n  d: 4\ne:\n  *c\n", "f.yaml")
    places = {".".join(map(str, field)): place for field, place in document.places.items()}
    assert places == {
        "": "f.yaml:1",
        "a": "f.yaml:1",
        "a.b": "f.yaml:2",
        "list": "f.yaml:3",
        "list.0": "f.yaml:4",
        "list.1": "f.yaml:5",
        "list.1.y": "f.yaml:5",
        "list.1.z": "f.yaml:6",
        "c": "f.yaml:7",
        "c.d": "f.yaml:8",
        "e": "f.yaml:9",
        "e.d": "f.yaml:8",
    }


LOOK = "look at this line and the one before (indentation, colons, quotes)."

REFUSED = {
    "a: 1\nb: 2\na: 3": "3: a: stands twice, first in line 1; keep one",
    "a:\n  - {b: 1, b: 2}": "2: a.0.b: stands twice, first in line 2; keep one",
    "a: 1\n b: 2": f"2: is not valid YAML: mapping values are not allowed here; {LOOK}",
    "a: [1, 2\nb: 3": f"2: is not valid YAML: expected ',' or ']', but got ':'; {LOOK}",
    "a: 'b": f"1: is not valid YAML: found unexpected end of stream; {LOOK}",
    "a: *b": f"1: is not valid YAML: found undefined alias 'b'; {LOOK}",
    "a:\n\tb: 1": "2: is not valid YAML: a tab stands where YAML wants spaces; indent with spaces.",
    "a: 1\n---\nb: 2": "2: is not valid here: a second document begins (`---`); keep one.",
    "a: 1\nb: \x01": "2: is not valid YAML: it has a control character; remove it.",
    "a: &a [*a]": "1: nests too deeply, or an alias contains itself; write it out.",
    "a: &a\n  <<: *a": " nests too deeply, or an alias contains itself; write it out.",
    "[" * 1200: " nests too deeply, or an alias contains itself; write it out.",
    "a:\n  " + "[" * 101 + "]" * 101: "2: nests too deeply, or an alias contains itself; write it out.",
    "a:\n- 0x" + "f" * 30_000: "2: a.0: is a number of more than 1000 digits; quote it as text",
    "a: " + "9" * 30_000: "1: a: is a number of more than 1000 digits; quote it as text",
    "a: .inf": "1: a: must be a finite number, got .inf",
    "a:\n- .NaN": "2: a.0: must be a finite number, got .NaN",
    "a: 0b_": "1: a: '0b_' cannot be read as tag:yaml.org,2002:int; quote it as text",
    "a: !!python/object:os.system x": "1: a: 'x' cannot be read as tag:yaml.org,2002:python/object:os.system; quote it "
    "as text",
    "a: !!binary aGk=": "1: a: 'aGk=' is a tag:yaml.org,2002:binary value; quote it as text",
    "[a]: 1": "1: a key must be text, not a list or mapping; put quotes around it",
    "a: {<<: 3}": "1: a: `<<` merges mappings only; give it one",
    'a: "\\ud800"': "1: a: holds half a character ('\\ud800'); write all of it",
    '"\\ud800": 1': "1: holds half a character ('\\ud800'); write all of it",
}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused(text: str) -> None:
    assert refusal(SpecError, parse, text, "f.yaml") == f"f.yaml:{REFUSED[text]}"


# what stands first; each level above, of so many aliases of the one below; how many levels
ALIASES = {
    "lists": ("x", "[%s]", 10, 11),
    "merged mappings": ("{k: 1}", "{<<: [%s]}", 10, 11),
    "merges of an empty mapping": ("{}", "{<<: [%s]}", 400, 2),
}


@pytest.mark.parametrize("case", ALIASES)
def test_a_few_aliases_that_stand_for_billions_of_values_are_refused(case: str) -> None:
    first, each, times, count = ALIASES[case]
    levels = [f"a{n}: &a{n} {each % ', '.join([f'*a{n - 1}'] * times)}" for n in range(1, count + 1)]
    with pytest.raises(SpecError, match=rf"stands for more than {MAX_VALUES} values; use fewer aliases\.$"):
        parse("\n".join([f"a0: &a0 {first}", *levels]), "f.yaml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "f.yaml: there is no such file; look for it."),
        (b"", "f.yaml: is empty; look for it."),
        (b"# nothing\n", "f.yaml: is empty; look for it."),
        (b"- 1\n- 2\n", "f.yaml:1: a spec is a mapping (`key: value` lines), not a list."),
        (b"\n\njust text", "f.yaml:3: a spec is a mapping (`key: value` lines), not 'just text'."),
        (b"a: \xff\xfe", "f.yaml: is not text in UTF-8 (byte 3); name a spec."),
    ],
)
def test_files_that_are_no_mapping(
    content: bytes | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("f.yaml").write_bytes(content)
    assert refusal(SpecError, read_document, Path("f.yaml"), "a spec", "look for it") == sentence


def test_a_folder_and_a_path_through_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is a folder; name the YAML file in it that is a spec\.$"):
        read_document(tmp_path, "a spec", "look for it")
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"cannot be read \(Not a directory\); check its permissions\.$"):
        read_document(tmp_path / "file" / "below", "a spec", "look for it")


def test_a_file_below_the_current_folder_is_named_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, named in (
        (tmp_path / "a" / "f.yaml", "a/f.yaml"),
        (tmp_path.parent / "f.yaml", f"{tmp_path.parent}/f.yaml"),
    ):
        said = refusal(SpecError, read_document, path, "a spec", "look for it")
        assert said == f"{named}: there is no such file; look for it."


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(tmp_path / "f.yaml", "a spec", "look for it").value == {"a": 1}


@pytest.mark.parametrize("number", ["012", "-012", "0_7", "1:30", "1:30:00"])
def test_a_number_that_yaml_reads_in_another_base_is_refused(number: str) -> None:
    with pytest.raises(SpecError, match=rf"f\.yaml:2: a\.min: {number} would be .*quote it as text"):
        parse(f"a:\n  min: {number}", "f.yaml")
    assert parse(f"min: '{number}'", "f.yaml").value == {"min": number}
