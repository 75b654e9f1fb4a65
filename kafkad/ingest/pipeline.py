"""The definition of a pipeline: dataclasses, one per section of the pipeline file.

    name = "flights"                    # for the query, its lock and metrics; default: the file's name
    [source]    bootstrap | log_dir, topics | pattern; start, engine, max_rows, max_bytes, retry_for, kafka.*
    [decode]    format, schema, registry, columns, bad_records, options.*
    [transform] sql, over the view `input`
    [dedup]     keys, watermark
    [sink]      type, path | table + catalog, partition_by, target_file_mb, schema_evolution, checkpoint
    [trigger]   available_now | interval
    [dlq]       topic | path
    [metrics]   jsonl, prometheus
    [spark]     master, ui, conf.*

Each field has its kind (pipeline_values.py), its default and a line of help. Reading (pipeline_file.py),
`plan` and the manual use this one table. A Pipeline is frozen, has plain values only (absolute paths, sizes
in bytes, times in seconds), and is sent to Spark's tasks unchanged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkad.ingest.pipeline_values import (
    count,
    duration,
    flag,
    megabytes,
    one_of,
    port,
    settings,
    shown,
    size,
    starting,
    text,
    texts,
)  # fmt: skip

PROVENANCE = ("_topic", "_partition", "_offset", "_timestamp")  # the origin of every landed row

BAD_RECORDS = ("fail", "null", "dlq")
ENGINES = ("auto", "kafkad", "kafka-jar")
EVOLUTION = ("add", "none")
FORMATS = ("raw", "json", "avro", "confluent-avro", "protobuf", "csv")
SINKS = ("parquet", "delta", "iceberg")
COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")


def row(kind: Callable[[Any], Any], help: str) -> dict[str, Any]:
    return {"kind": kind, "help": help}


def key(kind: Callable[[Any], Any], help: str, default: Any = None) -> Any:
    return field(default=default, metadata=row(kind, help))


@dataclass(frozen=True)
class Source:
    bootstrap: str | None = key(text, "The broker, HOST:PORT[,...].")
    topics: tuple[str, ...] = key(texts, "Topics to read.", ())
    pattern: str | None = key(text, "Instead of topics: a regular expression that topics match.")
    log_dir: str | None = key(text, "Instead of bootstrap: a data directory whose segment files are read.")
    start: str = key(
        starting, "Where the first run begins: earliest, latest, a time, or offsets.", "earliest"
    )
    engine: str = key(one_of(*ENGINES), "What reads the topic; kafka-jar is Spark's own connector.", "auto")
    max_rows: int | None = key(count, "Records in one batch.", 1_000_000)
    max_bytes: int | None = key(size, "Bytes in one batch.", 512 << 20)
    commit_group: str | None = key(
        text, "A consumer group that shows how far the pipeline is, for lag tools."
    )
    fail_on_data_loss: bool = key(
        flag, "Whether offsets that are gone before they were read end the run.", True
    )
    retry_for: float = key(
        duration, "How long a broker, a registry or a worker may be away before the run ends.", 120.0
    )
    kafka: dict[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=row(settings, "Options for the client: kafka.isolation.level and so on."),
    )


@dataclass(frozen=True)
class Decode:
    format: str = key(one_of(*FORMATS), "What a record's value is.", "raw")
    schema: str | None = key(
        text, 'Spark DDL ("id BIGINT, name STRING"), or a file (.avsc, .json, .ddl, .desc).'
    )
    registry: str | None = key(text, "The schema registry's URL, for confluent-avro.")
    message: str | None = key(text, "The message's full name in a protobuf descriptor.")
    columns: tuple[str, ...] = key(texts, "Only these columns are decoded and landed.", ())
    bad_records: str = key(one_of(*BAD_RECORDS), "A value that cannot be decoded: fail, null or dlq.", "fail")
    options: dict[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=row(settings, "The decoder's own: timeZone, sep, quote, escape, nullValue and so on."),
    )


@dataclass(frozen=True)
class Transform:
    sql: str | None = key(text, "A SELECT over the view input; _topic, _partition, _offset, _timestamp stay.")


@dataclass(frozen=True)
class Dedup:
    keys: tuple[str, ...] = key(texts, "Rows that agree in these columns are one.", ())
    watermark: float | None = key(duration, "How long apart (by _timestamp) duplicates may come, in seconds.")


@dataclass(frozen=True)
class Sink:
    type: str = key(one_of(*SINKS), "What is written.", "parquet")
    path: str | None = key(text, "The table's directory.")
    table: str | None = key(text, "An Iceberg table's name in its catalog, as db.flights.")
    catalog: dict[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=row(settings, "An Iceberg catalog's properties: name, uri, warehouse."),
    )
    partition_by: tuple[str, ...] = key(texts, "Columns whose values become directories.", ())
    target_file_mb: int = key(megabytes, "Size to which data files are filled.", 128)
    schema_evolution: str = key(one_of(*EVOLUTION), "Whether new columns are added to the table.", "none")
    compression: str = key(one_of(*COMPRESSIONS), "Of Parquet pages.", "zstd")
    checkpoint: str | None = key(
        text, "Where progress is kept; default: _kafkad/checkpoint within the table."
    )

    @property
    def target_file_bytes(self) -> int:
        return self.target_file_mb << 20


@dataclass(frozen=True)
class Trigger:
    available_now: bool = key(flag, "Read what is there when the run begins, in batches, and end.", True)
    interval: float | None = key(duration, "Instead: a batch every so often, until stopped, in seconds.")


@dataclass(frozen=True)
class Dlq:
    topic: str | None = key(text, "A topic that gets bad records as well, with headers that say why.")
    path: str | None = key(text, "The directory that gets them as Parquet; default: _dlq within the table.")
    exactly_once: bool = key(
        flag, "Whether the topic gets them in transactions, each once for readers of committed data.", True
    )


@dataclass(frozen=True)
class Metrics:
    jsonl: str | None = key(text, "A file that gets a line of JSON a batch.")
    prometheus: int | None = key(port, "A port of 127.0.0.1 that answers /metrics while the run lasts.")


@dataclass(frozen=True)
class Spark:
    master: str = key(text, "Spark's master, unless spark-submit says it.", "local[*]")
    ui: bool = key(flag, "Whether Spark's web UI runs.", False)
    conf: dict[str, str] = field(
        default_factory=dict,
        repr=False,
        metadata=row(settings, "Spark's own settings: spark.driver.memory and so on."),
    )


SECTIONS: dict[str, Any] = {
    "source": Source,
    "decode": Decode,
    "transform": Transform,
    "dedup": Dedup,
    "sink": Sink,
    "trigger": Trigger,
    "dlq": Dlq,
    "metrics": Metrics,
    "spark": Spark,
}


@dataclass(frozen=True)
class Origin:
    """The origin of a value: `where` is "pipeline.toml:7", "--set" or "default"; `text` may be shown."""

    where: str
    text: str


@dataclass(frozen=True)
class Pipeline:
    name: str
    source: Source
    decode: Decode
    transform: Transform
    dedup: Dedup
    sink: Sink
    trigger: Trigger
    dlq: Dlq
    metrics: Metrics
    spark: Spark
    file: str = ""  # absolute
    origins: dict[str, Origin] = field(default_factory=dict)  # by "section.key"

    def effective(self) -> list[tuple[str, str, str]]:
        """Return (key, value as it may be shown, origin) of every key with a value."""
        return [(name, origin.text, origin.where) for name, origin in self.origins.items() if origin.text]


def manual() -> list[tuple[str, str, str, str]]:
    """Return (section, key, default, help) of all keys of a pipeline, the table in docs/ingest.md."""
    rows = []
    for section, shape in SECTIONS.items():
        for each in dataclasses.fields(shape):
            default = "" if each.default is dataclasses.MISSING else shown(each.name, each.default)
            rows.append((section, each.name, default, each.metadata["help"]))
    return rows
