"""`kafkad ingest` for each sink and each format: what is bad goes to the dead letters and comes back when the
schema is mended; columns are added between runs, and nothing else.

Values are written by others' libraries (fastavro, protobuf, csv) and tables are read by others' (duckdb,
deltalake, pyiceberg).
"""

import csv
import io
import json
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro
import pytest

from tests.ingest_world import SPARK, fill, kafkad, landed, letters, produce, run_to_end, verified

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(400)]

N = 200  # records in each part; every tenth is bad until the schema is mended, and one for good
STRANGE = [n for n in range(N) if n % 10 == 9]


class Story:
    """A pipeline file in a folder of its own, and its topic."""

    def __init__(self, place, bootstrap, sink):
        self.place, self.bootstrap, self.sink = place, bootstrap, sink
        self.file = place / "events.toml"

    def told(self, decode, evolution="none"):
        """The file as it says now."""
        self.file.write_text(f"""
[source]
bootstrap = "{self.bootstrap}"
topics = "events"
retry_for = "2 seconds"
[decode]
bad_records = "dlq"
{decode}
[sink]
{self.sink}
schema_evolution = "{evolution}"
{SPARK}
""")

    def run(self):
        return run_to_end(self.file)

    def refused(self, said, command="run"):
        """By one sentence, and exit code 1."""
        done = kafkad("ingest", command, str(self.file), check=False)
        assert done.returncode == 1, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr

    def replayed(self):
        return json.loads(kafkad("ingest", "replay-dlq", str(self.file), "--json").stdout)[0]

    def first_run(self, values, decode):
        """Lands all but the strange ones and the broken one, which comes last."""
        fill(self.bootstrap, "events", ((b"k", value) for value in values), 2)
        self.told(decode)
        summary = self.run()
        assert (summary["rows"], summary["bad"]) == (N - len(STRANGE), len(STRANGE) + 1)
        assert summary["bytes"] == sum(1 + len(value) for value in values)
        assert sum(each["in_dlq"] for each in verified(self.file)) == len(STRANGE) + 1

    def mended(self, decode, evolution="none"):
        """With this schema all but the broken one can be decoded."""
        self.told(decode, evolution)
        told = self.replayed()
        assert told == {"found": len(STRANGE) + 1, "landed": len(STRANGE), "still_bad": 1}
        partitions = verified(self.file)
        assert sum(each["rows"] for each in partitions) == N
        assert sum(each["in_dlq"] for each in partitions) == 1

    def evolved(self, values, decode):
        """More records, of a schema with a column more."""
        produce(self.bootstrap, "events", ((b"k", value) for value in values))
        self.told(decode)
        self.refused('schema_evolution = "add" in [sink] adds it')
        self.told(decode, "add")
        assert self.run()["rows"] == N
        assert sum(each["rows"] for each in verified(self.file)) == 2 * N


AVRO = {"type": "record", "name": "Event", "fields": [
    {"name": "id", "type": "int"},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
]}  # fmt: skip


def avro_with(symbols=("A", "B"), more=(), **types):
    fields = [{"name": "id", "type": types.get("id", "int")}]
    fields.append({"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": list(symbols)}})
    return {"type": "record", "name": "Event", "fields": [*fields, *more]}


NOTE = {"name": "note", "type": ["null", "string"], "default": None}


def avro_bytes(schema, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, {}), row)
    return out.getvalue()


def test_avro_to_parquet(make_broker, tmp_path):
    story = Story(tmp_path, make_broker().bootstrap, 'path = "table"\npartition_by = "kind"')
    decode = 'format = "avro"\nschema = "event.avsc"'
    wide = avro_with("ABC")
    values = [avro_bytes(wide, {"id": n, "kind": "C" if n in STRANGE else "A"}) for n in range(N)]
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(AVRO))
    story.first_run([*values, values[0][:1]], decode)  # the last one is cut
    schema.write_text(json.dumps(wide))
    story.mended(decode)
    assert landed(tmp_path / "table", "SELECT kind, count(*) FROM landed GROUP BY 1 ORDER BY 1") == [
        ("A", N - len(STRANGE)),
        ("C", len(STRANGE)),
    ]
    noted = avro_with("ABC", [NOTE])
    schema.write_text(json.dumps(noted))
    rows = ({"id": N + n, "kind": "B", "note": f"n{n}" if n % 2 else None} for n in range(N))
    story.evolved([avro_bytes(noted, row) for row in rows], decode)
    assert letters(tmp_path / "table") == 1
    query = "SELECT count(*), count(note), max(note), sum(id) FROM landed"
    assert landed(tmp_path / "table", query) == [(2 * N, N // 2, "n99", sum(range(2 * N)))]
    schema.write_text(json.dumps(avro_with("ABC", [NOTE], id="string")))
    story.refused("the column id is int32 in the table and string in the pipeline")
    schema.write_text(json.dumps(wide))
    story.refused("the table has the column note, which the pipeline does not: columns are only added")


def protobuf_message(place, rule, more=""):
    """Compiles the message: (its class, the descriptor's file)."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from grpc_tools import protoc

    proto, out = place / "event.proto", place / "event.desc"
    proto.write_text(
        'syntax = "proto2"; package x;'
        f"message Event {{ required int32 id = 1; {rule} string label = 2; {more} }}"
    )
    assert protoc.main(["protoc", f"-I{place}", f"--descriptor_set_out={out}", str(proto)]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(files.file[0])
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Event"))


def test_protobuf_to_delta(make_broker, tmp_path):
    from deltalake import DeltaTable

    story = Story(tmp_path, make_broker().bootstrap, 'type = "delta"\npath = "table"')
    decode = 'format = "protobuf"\nschema = "event.desc"\nmessage = "x.Event"'
    event = protobuf_message(tmp_path, "optional")
    values = [
        (event(id=n) if n in STRANGE else event(id=n, label=f"l{n}")).SerializeToString() for n in range(N)
    ]
    protobuf_message(tmp_path, "required")
    story.first_run([*values, values[0][:-1]], decode)
    protobuf_message(tmp_path, "optional")
    story.mended(decode)
    event = protobuf_message(tmp_path, "optional", "optional double score = 3;")
    story.evolved([event(id=N + n, score=n / 2).SerializeToString() for n in range(N)], decode)
    table = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(table["id"].to_pylist()) == list(range(2 * N))
    assert table["label"].null_count == N + len(STRANGE)
    assert sum(table["score"].drop_null().to_pylist()) == sum(range(N)) / 2
    protobuf_message(tmp_path, "optional", "optional string score = 3;")
    story.refused("the column score is double in the table and string in the pipeline")
    protobuf_message(tmp_path, "optional")
    story.refused("the table has the column score, which the pipeline does not")


def iceberg_sink(place):
    return (
        'type = "iceberg"\ntable = "db.events"\npartition_by = "_partition"\n'
        f'catalog.uri = "sqlite:///{place}/catalog.db"\ncatalog.warehouse = "file://{place}/warehouse"'
    )


def iceberg_rows(place):
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "kafkad", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse"
    )
    return catalog.load_table("db.events").scan().to_arrow()


def csv_line(*row):
    """A quote within quotes is doubled, which Spark's own default (a backslash) is not."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(row)
    return out.getvalue().encode()


def test_csv_to_iceberg(make_broker, tmp_path):
    story = Story(tmp_path, make_broker().bootstrap, iceberg_sink(tmp_path))
    text = 'a "quoted", tëxt'
    values = [csv_line(n, "NA" if n in STRANGE else n * 2, text) for n in range(N)]
    decode = 'format = "csv"\nschema = "id INT, amount INT, what STRING{}"\noptions.escape = \'"\''
    story.first_run([*values, values[0] + b',"'], decode.format(""))
    lenient = decode + '\noptions.nullValue = "NA"'
    story.mended(lenient.format(""))
    story.evolved([csv_line(N + n, n, text, n % 2 == 0) for n in range(N)], lenient.format(", fine BOOLEAN"))
    table = iceberg_rows(tmp_path)
    assert sorted(table["id"].to_pylist()) == list(range(2 * N))
    assert set(table["what"].to_pylist()) == {text}
    assert table["amount"].null_count == len(STRANGE)
    assert table["fine"].null_count == N and sum(table["fine"].drop_null().to_pylist()) == N // 2
    story.told(lenient.format(", fine INT"), "add")
    story.refused("the column fine is bool in the table and int32 in the pipeline")
    story.told(lenient.format(""), "add")
    story.refused("the table has the column fine, which the pipeline does not")


class Registry:
    """A schema registry's REST interface, as much as readers ask of it."""

    def __init__(self):
        self.schemas = {}  # id -> schema
        self.subjects = {}  # subject -> id
        self.port = 0

    @contextmanager
    def up(self):
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                match self.path.strip("/").split("/"):
                    case ["schemas", "ids", id] if int(id) in registry.schemas:
                        found = {"schema": json.dumps(registry.schemas[int(id)])}
                    case ["subjects", subject, "versions", "latest"] if subject in registry.subjects:
                        id = registry.subjects[subject]
                        found = {"subject": subject, "id": id, "schema": json.dumps(registry.schemas[id])}
                    case _:
                        found = None
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write(json.dumps(found or {"error_code": 40403}).encode())

            def log_message(self, *_):
                pass

        ThreadingHTTPServer.allow_reuse_address = True
        with ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()


def framed(id, value):
    return struct.pack(">bI", 0, id) + value


def test_confluent_avro_to_iceberg_by_a_registry_that_learns_and_goes_away(make_broker, tmp_path):
    story = Story(tmp_path, make_broker().bootstrap, iceberg_sink(tmp_path))
    registry = Registry()
    old, new = avro_with(), avro_with(more=[NOTE])
    registry.schemas[1], registry.subjects["events-value"] = old, 1
    values = [
        framed(2, avro_bytes(new, {"id": n, "kind": "A", "note": "x"}))
        if n in STRANGE
        else framed(1, avro_bytes(old, {"id": n, "kind": "B"}))
        for n in range(N)
    ]
    with registry.up():
        decode = f'format = "confluent-avro"\nregistry = "http://127.0.0.1:{registry.port}"'
        story.first_run([*values, values[0][:-1]], decode)
        registry.schemas[2] = (
            new  # and the table goes by what it knew: the subject's newest is still the first
        )
        story.mended(decode)
        assert iceberg_rows(tmp_path)["kind"].to_pylist().count("A") == len(STRANGE)
        produce(story.bootstrap, "events", [(b"k", value) for value in values])
    story.refused("cannot be asked")  # the driver asks first
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(old))
    story.told(decode + '\nschema = "event.avsc"')
    done = kafkad("ingest", "run", str(story.file), check=False)  # the tasks ask, again and again
    assert done.returncode == 1
    assert "batch 2 failed after" in done.stderr and "cannot be asked" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert len(iceberg_rows(tmp_path)) == N
    with registry.up():
        assert story.run()["rows"] == N
    assert sum(each["rows"] for each in verified(story.file)) == 2 * N
