"""The options of the decoders: which options a format has, and which of Spark's are refused, with the reason.

An option of from_json, from_csv, from_avro or from_protobuf either has its effect, or is refused with an
error message. An option with the value that always applies here (mode=FAILFAST) is accepted. No option is
silently ignored. The same rules apply to an option of another format."""

from __future__ import annotations

from collections.abc import Mapping

ALL = ("columns", "topic")
TIMES = ("timeZone", "timestampFormat", "timestampNTZFormat", "dateFormat")
REGISTRY = (
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "schema.registry.ssl.ca.location",
    "schema.registry.ssl.certificate.location",
    "schema.registry.ssl.key.location",
    "schema.registry.subject",
)
OPTIONS: dict[str, tuple[str, ...]] = {
    "json": TIMES,
    "csv": (
        "sep", "delimiter", "quote", "escape", "nullValue", "nanValue", "positiveInf", "negativeInf", *TIMES,
    ),
    "avro": (),
    "confluent-avro": REGISTRY,
    "protobuf": (
        "messageName", "confluentHeader", "upcast.unsigned.ints", "enums.as.ints", "emit.default.values",
    ),
}  # fmt: skip

BAD_RECORDS = (
    "badRecords says what becomes of values that cannot be decoded: fail, null, column or dlq:<topic>"
)
ONE_LINE = "a record's value is one row"
# of Spark's functions: the only values that are taken, which say what is so anyway, and why no other
FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "mode": (("failfast",), BAD_RECORDS),
    "columnNameOfCorruptRecord": ((), f"{BAD_RECORDS}; column gives the columns _error and _raw"),
    "locale": (("en-us", "en"), "names of months and decimals are read as in en-US"),
    "allowNonNumericNumbers": (("true",), "NaN and Infinity are numbers"),
    "allowUnquotedFieldNames": (("false",), "the names of fields are in quotes"),
    "allowSingleQuotes": (("true",), "strings may be in single quotes"),
    "allowNumericLeadingZeros": (("false",), "numbers have no leading zeros"),
    "allowBackslashEscapingAnyCharacter": (("false",), "a backslash stands before what JSON lets it stand"),
    "allowComments": (("false",), "JSON has no comments"),
    "allowUnquotedControlChars": (("false",), "control characters in strings are escaped"),
    "primitivesAsString": (("false",), "the schema says what a column is: name it as a STRING"),
    "prefersDecimal": (("false",), "the schema says what a column is: name it as a DECIMAL"),
    "dropFieldIfAllNull": (("false",), "the schema says which columns there are"),
    "inferSchema": (("false",), "the schema says what a column is"),
    "enforceSchema": (("true",), ONE_LINE),
    "multiLine": (("false",), ONE_LINE),
    "lineSep": (("\n",), ONE_LINE),
    "encoding": (("utf-8", "utf8"), "values are UTF-8"),
    "charset": (("utf-8", "utf8"), "values are UTF-8"),
    "header": (("false",), f"{ONE_LINE}, so none is a header"),
    "comment": (("",), "a line that begins with a certain character is no comment"),
    "emptyValue": (("",), "an empty field in quotes is empty"),
    "charToEscapeQuoteEscaping": (("", "\\"), "the escape character escapes itself"),
    "unescapedQuoteHandling": (("stop_at_delimiter",), "a quote within a bare field stands for itself"),
    "ignoreLeadingWhiteSpace": (("false",), "blanks belong to a field; take them off with ltrim"),
    "ignoreTrailingWhiteSpace": (("false",), "blanks belong to a field; take them off with rtrim"),
    "preferDate": (("true", "false"), "the schema says what a column is"),
    "enableDateTimeParsingFallback": (("false",), "times are as their format says, or as by default"),
    "avroSchema": ((), "valueSchema is the reader's schema"),
    "recursiveFieldMaxDepth": ((), "a recursive schema is refused"),
    "recursive.fields.max.depth": ((), "a recursive message is refused"),
    "enableStableIdentifiersForUnionType": (("false",), "a union's columns are member0, member1, ..."),
    "convert.any.fields.to.json": (("false",), "google.protobuf.Any stays a struct"),
}  # fmt: skip
# all names that format("kafkad") hands on to be checked here
DECODER_OPTIONS: tuple[str, ...] = tuple(
    dict.fromkeys((*(name for names in OPTIONS.values() for name in names), *FIXED))
)
SPELLED = {name.lower(): name for name in (*ALL, *DECODER_OPTIONS)}


def checked(format: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-case name. ValueError: one that has no effect on this format."""
    found: dict[str, str] = {}
    taken = {name.lower() for name in (*ALL, *OPTIONS[format])}
    for given, value in options.items():
        name = given.lower()
        spelled = SPELLED.get(name, given)
        if name in taken:
            found[name] = value
        elif spelled in FIXED:
            values, why = FIXED[spelled]
            if value.strip(" ").lower() not in values:
                only = f" other than {values[0]!r}" if values else ""
                raise ValueError(f"option {spelled}{only} is not supported for valueFormat {format}: {why}")
        elif name in SPELLED:
            where = " and ".join(each for each, names in OPTIONS.items() if spelled in names)
            raise ValueError(f"option {spelled} is one of valueFormat {where}, not of {format}")
        else:
            raise ValueError(f"option {given} is not known to valueFormat {format}")
    return found


def flag(options: Mapping[str, str], name: str) -> bool:
    """False by default. ValueError: neither true nor false."""
    value = options.get(name.lower(), "false").strip().lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is true or false, not {value!r}")
    return value == "true"


def delimiter(text: str) -> str:
    """As Spark's CSVExprUtils.toDelimiterStr: a backslash stands before t, r, b, f, quotes and itself."""
    found, i = "", 0
    escapes = {"t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\"}
    while i < len(text):
        c = text[i]
        if c == "\\":
            i += 1
            c = escapes.get(text[i : i + 1], "")
            if not c:
                raise ValueError(
                    f"option sep is {text!r}: a backslash in it stands before t, r, b, f, \", ' or \\"
                )
        found += c
        i += 1
    if not found:
        raise ValueError("option sep is empty: it is what stands between two fields")
    return found
