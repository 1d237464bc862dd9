"""Why a reader does not find in a file of the corpus what is meant: the reasons, each with its cases."""

from __future__ import annotations

from typing import Any

REASONS = {
    "pandas takes commas alone for separators.": (
        "csv-semicolon csv-tab csv-pipe csv-sep-line csv-sep-line-comma csv-decimal-comma"
    ),
    "No reader guesses decimal commas and thousands: 1,234 may be one number or two.": (
        "csv-decimal-comma csv-thousands"
    ),
    "No reader guesses an encoding: in most, the bytes of one are valid in the other, with other letters.": (
        "csv-utf-16 csv-cp1252 csv-cp1252-header jsonl-utf-16"
    ),
    "Text after a closing quote: pandas drops quotes or takes several lines for one value without a word.": (
        "csv-backslash-quotes csv-text-after-quote csv-two-open-quotes"
    ),
    "DuckDB takes a quote that is not closed for a letter.": (
        "csv-unclosed-quote csv-text-after-quote csv-two-open-quotes"
    ),
    "pandas fills a row that is too short with missing values; it may as well be cut.": "csv-short-row",
    "When a row has too many values, pandas takes the first for row names or refuses, and"
    " DuckDB takes each line for one"
    " value.": "csv-short-row csv-long-row csv-long-rows csv-trailing-commas-below",
    "pandas and DuckDB rename the second of two columns; nobody meant that name.": (
        "csv-duplicate-header parquet-duplicate-name"
    ),
    "DuckDB takes away the spaces around a name, and gives another name to a column without one.": (
        "csv-empty-header csv-header-spaces csv-trailing-commas parquet-dotted-name"
    ),
    "DuckDB does not tell the case of names.": "csv-case-twins jsonl-case-twins parquet-case-twins two-case-twins",
    "Numbers, as in pandas: quotes do not help. Write such a code with a letter, or use Parquet.": "csv-leading-zeros",
    "pandas makes whole numbers with gaps float64, and rounds those above 2^53.": (
        "csv-big-ints-gap csv-na-words csv-nan-among-ints jsonl-big-ints-gap jsonl-missing-keys"
        " parquet-uint64 parquet-int64-gap"
        " parquet-list parquet-struct"
    ),
    "No column type of a shard holds whole numbers above 2^64, so they stay text.": "csv-huge-ints",
    "float64 would change the digits of the large number, so the column stays text.": "csv-big-int-among-floats",
    "DuckDB does not know this way of writing a number.": "csv-floats csv-plus-sign csv-infinity-words",
    "A quoted empty text is a text; pandas and DuckDB lose it.": "csv-empty-quoted",
    "DuckDB takes words such as NA for text.": "csv-na-words csv-nan-among-ints",
    "In quotes, NA is a text, such as Namibia's code; pandas drops it.": "csv-na-word-in-text",
    "DuckDB takes yes, no, t and f for truth values; the words may as well be texts.": "csv-yes-no",
    "pandas leaves dates and times in CSV text.": (
        "csv-dates csv-iso-times csv-times-zone csv-times-ns csv-far-dates csv-date-and-time"
    ),
    "DuckDB rounds nanoseconds to microseconds.": "csv-times-ns",
    "DuckDB guesses whether the day or the month comes first, in each column anew.": "csv-foreign-dates",
    "DuckDB takes more texts for dates and times.": (
        "csv-clock-times csv-unpadded-dates csv-zone-and-naive csv-year-10000"
    ),
    "DuckDB does not widen a column of dates to times.": "csv-date-and-time jsonl-date-and-time jsonl-dates",
    "DuckDB skips lines that begin with #; a value may begin so, too.": "csv-comments",
    "DuckDB takes a blank line for a row in a file of one column.": "csv-one-column-gap",
    "DuckDB reads no file with two kinds of line ends.": "csv-mixed-ends",
    "DuckDB takes away spaces before a quote.": "csv-space-before-quote",
    "DuckDB keeps the quotes of the first name after a byte order mark.": "csv-bom-quoted-header",
    "Spaces alone are no value in a column of numbers.": "csv-spaces-only",
    "pandas refuses a byte order mark.": "jsonl-bom",
    "JSON has no number as large; read as a float64, it would be rounded or infinite.": (
        "jsonl-huge-ints jsonl-big-int-among-floats jsonl-overflow"
    ),
    "pandas takes NaN for a missing value.": "jsonl-nan parquet-nan-and-null parquet-row-groups",
    "pandas and DuckDB keep one of two values with the same key, or lose text that is not valid.": (
        "jsonl-duplicate-keys jsonl-lone-surrogate"
    ),
    "pandas and DuckDB hold values of several kinds in a column; a shard cannot.": (
        "jsonl-mixed jsonl-mixed-bool jsonl-object-or-text two-int-text two-int-bool two-csv-number-text"
    ),
    "pandas turns texts into numbers.": "jsonl-text-numbers",
    "pandas leaves times in JSON text, unless the column is named like a time: then it takes numbers for times.": (
        "jsonl-dates jsonl-zone-times jsonl-date-and-time jsonl-late-time-text jsonl-named-like-times"
    ),
    "pandas or DuckDB accept what is not JSON.": "jsonl-leading-zeros jsonl-trailing-comma",
    "A row must be an object, with names.": "jsonl-scalars jsonl-empty-objects jsonl-empty-key",
    "A file of one array is not JSON Lines.": "json-array json-array-lines json-pretty",
    "Integers above 2^63 need uint64.": "jsonl-uint64",
    "pandas takes a .json file for one array or object, so objects on lines need lines=True.": (
        "json-lines jsonl-two-on-a-line"
    ),
    "pandas takes an object for a table by columns, DuckDB for one row; it is refused.": "json-object-of-columns",
    "INT96 is nanoseconds for pandas, so a date after 2262 becomes another.": "parquet-int96-far",
    "DuckDB has no such type.": "parquet-duration parquet-decimal256",
    "pandas makes a stored index the frame's, and no column.": "parquet-hidden-index parquet-named-index",
    "A column without a value has no type of its own.": "parquet-zero-columns",
    "DuckDB does not read this compression.": "bzip2 xz bzip2-streams xz-streams",
    "DuckDB refuses zeros after the end, as tapes leave them.": "gzip-padded",
    "DuckDB does not check the end of compressed data.": "zstd-truncated gzip-flipped",
    "pandas and DuckDB do not read compressed Parquet.": "gzip-parquet",
    "pandas leaves days in the names of folders text.": "hive hive-folder",
    "A number that is too large for float64 stays text; pandas and DuckDB make it infinite.": "csv-float-overflow",
    "DuckDB does not read this encoding.": "csv-cp1252-said csv-cp1252-header-said",
    "pandas and DuckDB read files whose names begin with a dot.": "spark-output-parquet",
    "float64 does not hold both.": "two-big-int-float two-int-uint64 two-negative-uint64",
    "pandas keeps the two types in a column of objects.": "two-date-time two-decimal-scales two-decimal-float",
    "A time without a zone is not a moment, so both in a column are refused.": "two-time-zone",
    "Moments in two zones are refused; give the column one zone.": "two-time-zones",
    "DuckDB reads files of one format at a time.": "two-formats",
    "Tables alone.": "images text-lines text-bom",
}
ROUNDED = "pandas rounds the numbers of JSON in the last digit."


def why(case: str, lines: dict[str, Any]) -> str:
    """The reasons that are given for a case; `lines` are its readings."""
    reasons = [reason for reason, cases in REASONS.items() if case in cases.split()]
    return " ".join(reasons + [ROUNDED] * ("a float64: other values" in lines["pandas"] and "json" in case))
