"""Read a pipeline file: parse TOML to a Pipeline, and report every error with its line.

`load` collects all errors before it raises PipelineError. A text may contain ${NAME}, which is replaced by
the environment variable ($${ is a plain ${). Such values are secrets and are never printed; neither are
values whose key suggests a password. Relative paths are relative to the directory of the pipeline file, so it
can be run from anywhere. Values that are overridden on the command line ("section.key=value") have no line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafkad.ingest.pipeline import (
    FORMATS,
    PROVENANCE,
    SECTIONS,
    Decode,
    Dlq,
    Origin,
    Pipeline,
    Sink,
    Source,
    Trigger,
)  # fmt: skip
from kafkad.ingest.pipeline_values import nearest, shown, text
from kafkad.ingest.toml_lines import key_lines, line_of
from kafkad.spark.options import DECODER_OPTIONS

SCHEMA_FILES = (".avsc", ".ddl", ".desc", ".json", ".pb", ".sql")

# options of the source that the pipeline sets itself, or that would break its guarantees
KAFKA_OWNED = (
    "bootstrap.servers", "auto.offset.reset", "enable.auto.commit", "group.id", "interceptor.classes",
    "key.deserializer", "value.deserializer",
)  # fmt: skip
SPARK_OWNED = {
    "spark.sql.session.timeZone": "landed times are UTC",
    "spark.master": "say [spark] master",
    "spark.remote": "a pipeline drives Spark from a driver of its own; say [spark] master",
}


class PipelineError(ValueError):
    """The pipeline file is wrong: `mistakes` are messages, one per mistake, each with file and line."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


def load(path: str | Path, environ: Mapping[str, str], overrides: Sequence[str] = ()) -> Pipeline:
    """Read and check a pipeline file. `overrides` are "section.key=value" of the command line, which have
    precedence.

    Raises PipelineError with all mistakes, OSError if the file cannot be read.
    """
    place = Path(path)
    try:
        content = place.read_bytes().decode()
    except UnicodeDecodeError as wrong:
        raise PipelineError([f"{place.name}: byte {wrong.start} is not UTF-8, which TOML is"]) from None
    return parse(content, place, environ, overrides)


def parse(content: str, place: Path, environ: Mapping[str, str], overrides: Sequence[str] = ()) -> Pipeline:
    content = content.replace("\r\n", "\n")
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as wrong:
        found = re.search(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", str(wrong), re.DOTALL)
        line = int(found[2]) if found and found[2] else content.count("\n") + 1
        raise PipelineError(
            [f"{place.name}:{line}: this is not TOML: {found[1] if found else wrong}"]
        ) from None
    return Reader(document, key_lines(content), place, environ).read(overrides)


class Reader:
    """One pass over a document; collects mistakes."""

    def __init__(
        self,
        document: dict[str, Any],
        lines: dict[tuple[str, ...], int],
        place: Path,
        environ: Mapping[str, str],
    ) -> None:
        self.document = document
        self.lines = lines
        self.place = place
        self.environ = environ
        self.mistakes: list[tuple[int, str]] = []
        self.origins: dict[str, Origin] = {}
        self.overridden: set[tuple[str, ...]] = set()

    def wrong(self, path: tuple[str, ...], sentence: str) -> None:
        line = line_of(self.lines, path)
        section, *rest = path if path else ("",)
        label = f"[{section}] {'.'.join(rest)}" if rest and section in SECTIONS else ".".join(path)
        there = "--set" if path in self.overridden else f"{self.place.name}:{line}"
        self.mistakes.append((line, f"{there}: {label.strip()} {sentence}"))

    def given(self, section: str, name: str = "") -> bool:
        inner = self.document.get(section, {})
        return section in self.document if not name else isinstance(inner, dict) and name in inner

    def read(self, overrides: Sequence[str]) -> Pipeline:
        for override in overrides:
            self.override(override)
        known = ["name", *SECTIONS]
        for name, value in self.document.items():
            if name not in known:
                self.unknown((name,), "table or key of a pipeline", name, known)
            elif name != "name" and not isinstance(value, dict):
                self.wrong((name,), f"must be a table: [{name}] on a line of its own")
                self.document[name] = {}
        name = self.value(("name",), text, self.place.stem, self.document)
        sections = {section: self.section(section, shape) for section, shape in SECTIONS.items()}
        if not self.mistakes:
            sections = self.checked(sections)
        if self.mistakes:
            raise PipelineError([sentence for _, sentence in sorted(self.mistakes, key=lambda row: row[0])])
        return Pipeline(name=name, **sections, file=str(self.place.absolute()), origins=self.origins)

    def override(self, override: str) -> None:
        """Apply section.key=value: the value is parsed as TOML, otherwise it is a string."""
        name, equals, value = override.partition("=")
        section, _, rest = name.strip().partition(".")
        if not equals or section not in SECTIONS or not rest:
            self.mistakes.append((0, f"--set {name}: it takes section.key=value, as sink.target_file_mb=64"))
            return
        try:
            read: Any = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            read = value
        table = self.document.setdefault(section, {})
        head, _, inner = rest.partition(".")
        if inner:  # source.kafka.isolation.level=…
            table = table.setdefault(head, {})
        table[inner or head] = read
        self.overridden.add((section, head))

    def unknown(self, path: tuple[str, ...], what: str, name: str, known: Sequence[str]) -> None:
        near = nearest(name, known)
        hint = f"did you mean {near}? " if near else ""
        self.wrong(path, f"is no {what}; {hint}{'It' if hint else 'it'} takes {', '.join(known)}")

    def section(self, section: str, shape: Any) -> Any:
        table = self.document.get(section, {})
        fields = {field.name: field for field in dataclasses.fields(shape)}
        for name in table:
            if name not in fields:
                self.unknown((section, name), f"key of [{section}]", name, list(fields))
        values = {}
        for name, field in fields.items():
            made = field.default_factory
            default = made() if made is not dataclasses.MISSING else field.default
            values[name] = self.value((section, name), field.metadata["kind"], default, table)
        return shape(**values)

    def value(
        self, path: tuple[str, ...], kind: Callable[[Any], Any], default: Any, table: dict[str, Any]
    ) -> Any:
        name = path[-1]
        if name not in table:
            self.origins[".".join(path)] = Origin("default", shown(".".join(path), default))
            return default
        raw = table[name]
        where = "--set" if path in self.overridden else f"{self.place.name}:{line_of(self.lines, path)}"
        try:
            resolved = self.resolved(raw)
        except KeyError as missing:
            self.wrong(path, f"names ${{{missing.args[0]}}}, which the environment does not have")
            return default
        try:
            value = kind(resolved)
        except ValueError as allowed:
            if isinstance(raw, dict):  # the invalid entry
                good = dict | bool | int | float | str
                entry = [each for each, inner in raw.items() if not isinstance(inner, good)][:1]
                self.wrong((*path, *entry), "must be a text, a number, true or false")
            else:
                self.wrong(path, f"= {shown(name, raw)} is not {allowed}")
            return default
        from_environment = resolved != raw
        self.origins[".".join(path)] = Origin(
            where + (", environment" if from_environment else ""),
            shown(".".join(path), raw if from_environment else value, kind),
        )
        return value

    def resolved(self, value: Any) -> Any:
        """Return the value with ${NAME} replaced. Raises KeyError with the name."""
        if isinstance(value, dict):
            return {name: self.resolved(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.resolved(inner) for inner in value]
        if not isinstance(value, str):
            return value
        return re.sub(
            r"\$(\$)?\{(\w*)\}?",
            lambda found: found[0][1:] if found[1] else self.environ[found[2]],
            value,
        )

    # --- relations between keys

    def checked(self, sections: dict[str, Any]) -> dict[str, Any]:
        self.check_source(sections["source"], sections["trigger"])
        sections["decode"] = self.check_decode(sections["decode"], sections["dlq"], sections["source"])
        self.check_sink(sections["sink"])
        dedup, trigger, dlq = sections["dedup"], sections["trigger"], sections["dlq"]
        if bool(dedup.keys) != (dedup.watermark is not None):
            missing = "watermark" if dedup.keys else "keys"
            self.wrong(
                ("dedup",), f"needs {missing}: without a watermark it would remember every key for ever"
            )
        if trigger.interval is not None:
            if self.given("trigger", "available_now") and trigger.available_now:
                self.wrong(("trigger", "available_now"), "and interval exclude each other; say one")
            sections["trigger"] = dataclasses.replace(trigger, available_now=False)
            self.origins["trigger.available_now"] = Origin("default", "false")
        elif not trigger.available_now:
            self.wrong(("trigger", "available_now"), '= false needs interval, as interval = "1 minute"')
        if dlq.topic and sections["source"].log_dir and not sections["source"].bootstrap:
            self.wrong(("dlq", "topic"), "needs [source] bootstrap; with log_dir, say path instead")
        if sections["decode"].bad_records == "dlq" and not dlq.path:
            place = sections["sink"].path
            where = str(self.under(place) / "_dlq") if place else "_dlq at the table's location"
            self.origins["dlq.path"] = Origin("default", where)
        if dlq.topic and (read := read_by(sections["source"], dlq.topic)):
            said = f"is read by [source] {read}: its records would come round for ever"
            self.wrong(("dlq", "topic"), said)
        for name in sections["spark"].conf:
            if not name.startswith("spark."):
                self.wrong(("spark", "conf", name), f"is no setting of Spark: did you mean spark.{name}?")
            elif name in SPARK_OWNED:
                self.wrong(("spark", "conf", name), f"may not be set: {SPARK_OWNED[name]}")
        return {section: self.absolute(section, values) for section, values in sections.items()}

    def check_source(self, source: Source, trigger: Trigger) -> None:
        at = ("source",)
        if not source.bootstrap and not source.log_dir:
            self.wrong(at, 'needs bootstrap, as bootstrap = "127.0.0.1:9092", or log_dir')
        if bool(source.topics) == bool(source.pattern):
            said = "needs topics or pattern" if not source.topics else "has both topics and pattern; say one"
            self.wrong((*at, "pattern") if source.pattern else at, said)
        if source.pattern:
            try:
                re.compile(source.pattern)
            except re.error as trouble:
                self.wrong((*at, "pattern"), f"is not a regular expression: {trouble}")
        for topic in source.topics:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic):
                self.wrong((*at, "topics"), f"has {topic!r}: a name is 1 to 249 of a-z A-Z 0-9 . _ -")
        if source.log_dir:
            if source.pattern:
                self.wrong((*at, "pattern"), "does not go with log_dir; name the topics")
            if source.engine == "kafka-jar":
                self.wrong((*at, "engine"), "= kafka-jar cannot read log_dir; leave it out")
            if trigger.interval is not None:
                self.wrong(
                    ("trigger", "interval"), "does not go with [source] log_dir, which is read to its end"
                )
        for name in source.kafka:
            if name in KAFKA_OWNED:
                said = "say bootstrap" if name == "bootstrap.servers" else "the pipeline keeps offsets itself"
                self.wrong((*at, "kafka", *name.split(".")), f"may not be set: {said}")

    def check_decode(self, decode: Decode, dlq: Dlq, source: Source) -> Decode:
        at = ("decode",)
        if decode.format == "raw":
            for name in ("schema", "registry", "message"):
                if getattr(decode, name):
                    self.wrong((*at, name), f"needs a format: say format = one of {', '.join(FORMATS[1:])}")
            if decode.bad_records == "null" or (
                decode.bad_records == "dlq" and self.given("decode", "bad_records")
            ):
                self.wrong((*at, "bad_records"), "has nothing to do: raw values are never bad")
        elif decode.format == "confluent-avro":
            if not decode.registry:
                self.wrong(at, "needs registry for confluent-avro, as http://127.0.0.1:8081")
            subject = any(name.lower() == "schema.registry.subject" for name in decode.options)
            if len(source.topics) != 1 and not decode.schema and not subject:
                said = 'needs schema, or options."schema.registry.subject": it reads more than one topic'
                self.wrong(at, said)
        elif not decode.schema:
            self.wrong(at, f"needs schema for {decode.format}: Spark DDL, or a file")
        if decode.registry and decode.format != "confluent-avro":
            self.wrong((*at, "registry"), "goes with format confluent-avro only")
        if decode.registry and not re.match(r"https?://", decode.registry):
            self.wrong((*at, "registry"), "must be a URL, http:// or https://")
        if decode.schema and decode.schema.endswith(SCHEMA_FILES) and not self.under(decode.schema).is_file():
            self.wrong((*at, "schema"), f"is a file that is not there: {self.under(decode.schema)}")
        if decode.columns and (taken := [name for name in decode.columns if name in PROVENANCE]):
            self.wrong((*at, "columns"), f"names {taken[0]}, which every row has anyway")
        there = bool(dlq.topic or dlq.path)
        if decode.format == "raw" and there:
            self.wrong(("dlq",), "has nothing to do: raw values are never bad")
        elif there and not self.given("decode", "bad_records"):
            decode = dataclasses.replace(decode, bad_records="dlq")
            self.origins["decode.bad_records"] = Origin("default, as [dlq] is given", "dlq")
        elif there and decode.bad_records != "dlq":
            self.wrong((*at, "bad_records"), f"= {decode.bad_records} leaves [dlq] without use; say dlq")
        self.check_decoder_options(decode)
        return decode

    def check_decoder_options(self, decode: Decode) -> None:
        owned = {"schema.registry.url": "registry", "messagename": "message", "columns": "columns"}
        known = {name.lower(): name for name in DECODER_OPTIONS}
        for name in decode.options:
            path = ("decode", "options", *name.split("."))
            if decode.format == "raw":
                self.wrong(path, "has nothing to do: raw values are not decoded")
            elif own := owned.get(name.lower()):
                self.wrong(path, f"is a key of its own: say [decode] {own}")
            elif name.lower() not in known:
                free = [each for each in DECODER_OPTIONS if each.lower() not in owned]
                self.unknown(path, "option of a decoder", name, free)

    def check_sink(self, sink: Sink) -> None:
        at = ("sink",)
        if not self.given("sink"):
            self.wrong(at, 'is missing: say [sink], type and path, as path = "./table"')
            return
        if sink.type == "iceberg":
            if not sink.table or sink.table.count(".") < 1:
                self.wrong((*at, "table"), "is needed for iceberg, with its namespace, as db.flights")
            if sink.path:
                self.wrong((*at, "path"), "does not go with iceberg: its catalog says where files are")
            if not sink.catalog:
                self.wrong(at, 'needs catalog for iceberg, as catalog.uri = "sqlite:////data/catalog.db"')
        else:
            if not sink.path:
                self.wrong(at, f"needs path, the directory of the {sink.type} table")
            for name in ("table", "catalog"):
                if getattr(sink, name):
                    self.wrong((*at, name), "goes with type iceberg only; say path")

    # --- paths

    def under(self, path: str) -> Path:
        return (self.place.absolute().parent / Path(path).expanduser()).resolve()

    def absolute(self, section: str, values: Any) -> Any:
        """Resolve paths relative to the pipeline file's directory; URIs stay."""
        names = {
            "source": ["log_dir"],
            "decode": ["schema"],
            "sink": ["path", "checkpoint"],
            "dlq": ["path"],
            "metrics": ["jsonl"],
        }.get(section, [])
        for name in names:
            path = getattr(values, name)
            if path is None or re.match(r"[a-z][a-z0-9+.-]*://", path):
                continue
            if section == "decode" and not path.endswith(SCHEMA_FILES):
                continue
            whole = str(self.under(path))
            values = dataclasses.replace(values, **{name: whole})
            origin = self.origins[f"{section}.{name}"]
            if "environment" not in origin.where:
                self.origins[f"{section}.{name}"] = dataclasses.replace(origin, text=whole)
        return values


def read_by(source: Source, topic: str) -> str:
    """Return which key of [source] names the topic; "" if none does."""
    if source.pattern:
        with contextlib.suppress(re.error):  # told already
            return "pattern" if re.search(source.pattern, topic) else ""
    return "topics" if topic in source.topics else ""
