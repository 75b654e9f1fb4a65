"""`kafkad ingest` as its commands promise it: dead letters, SQL, dedup, triggers, metrics.

Each start of Spark costs seconds, so that a test here is a story of several promises.
"""

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.ingest_world import (
    SPARK,
    Job,
    fill,
    kafkad,
    landed,
    letters,
    produce,
    run_to_end,
    sent_letters,
    verified,
)

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(400)]

JARS = Path(__file__).parents[2] / ".cache" / "jars" / "spark-sql-kafka"
ROWS, NOT_A_NUMBER = 3000, 75
BROKEN = 7  # its JSON ends in the middle, which no schema mends


def orders(count=ROWS):
    """(key, value): some have an amount that is no number, one is cut."""
    for n in range(count):
        amount = "n/a" if n % NOT_A_NUMBER == NOT_A_NUMBER - 1 else n
        value = json.dumps({"id": n, "amount": amount, "kind": "ab"[n % 2]}).encode()
        yield b"%d" % n, value[:-5] if n == BROKEN else value


STRANGE = {n for n in range(ROWS) if n % NOT_A_NUMBER == NOT_A_NUMBER - 1}
BAD = len(STRANGE) + 1


def pipeline_at(place, bootstrap, more="", name="orders", amount="amount INT"):
    file = place / f"{name}.toml"
    file.write_text(f"""
[source]
bootstrap = "{bootstrap}"
topics = "orders"
max_rows = {ROWS // 3}
[decode]
format = "json"
schema = "id INT, {amount}, kind STRING"
bad_records = "dlq"
[sink]
path = "{name}-table"
{more}
{SPARK}
""")
    return file


SQL = """
[transform]
sql = '''
  SELECT id, {twice} AS twice, kind, CAST(_key AS STRING) AS k, _topic, _partition, _offset, _timestamp
  FROM input WHERE kind = "a"
'''
"""


@pytest.fixture
def engine(request, monkeypatch):
    """Runs a pipeline whose topic is read by the own client or by Spark's connector; the run's summary. A JVM
    must have the connector's jars from its start."""
    monkeypatch.setenv("KAFKAD_SPARK_KAFKA_JARS", str(JARS))

    def run(pipeline, *arguments):
        arguments += ("--set", f"source.engine={request.param}")
        if request.param == "kafkad":
            return run_to_end(pipeline, *arguments)
        with Job(pipeline, *arguments) as job:
            return job.finish()

    return run


@pytest.mark.parametrize(
    "engine", ["kafkad", pytest.param("kafka-jar", marks=pytest.mark.soak_only)], indirect=True
)
def test_sql_with_dead_letters_reads_each_record_once_and_replays_them_by_the_same_sql(
    make_broker, tmp_path, engine
):
    broker = make_broker()
    fill(broker.bootstrap, "orders", orders(), 3)
    pipeline = pipeline_at(tmp_path, broker.bootstrap, SQL.format(twice="amount * 2"))
    table = tmp_path / "orders-table"
    plan = json.loads(kafkad("ingest", "plan", str(pipeline), "--json").stdout)
    assert plan["configuration"]["dlq.path"] == {"value": f"{table}/_dlq", "from": "default"}

    summary = engine(pipeline)
    good = set(range(0, ROWS, 2)) - STRANGE
    assert (summary["records"], summary["rows"], summary["bad"]) == (ROWS, len(good), BAD)
    assert summary["bytes"] == sum(len(key) + len(value) for key, value in orders())
    assert letters(table) == BAD
    query = "SELECT count(*), count(DISTINCT id), sum(twice), min(k = id::VARCHAR) FROM landed"
    assert landed(table, query) == [(len(good), len(good), 2 * sum(good), True)]
    assert sum(each["left_out"] for each in verified(pipeline)) == ROWS - BAD - len(good)

    pipeline_at(
        tmp_path, broker.bootstrap, SQL.format(twice="try_cast(amount AS INT) * 2"), amount="amount STRING"
    )
    told = json.loads(kafkad("ingest", "replay-dlq", str(pipeline), "--json").stdout)
    mended = len([n for n in STRANGE if n % 2 == 0])
    assert told == [{"found": BAD, "landed": mended, "still_bad": 1}]
    assert landed(table, "SELECT count(*), count(twice) FROM landed") == [(len(good) + mended, len(good))]
    partitions = verified(pipeline)
    assert sum(each["in_dlq"] for each in partitions) == letters(table) == 1


def test_what_the_sql_does_not_want_is_read_for_its_dead_letters_by_a_cluster_of_processes(
    make_broker, tmp_path, monkeypatch
):
    broker = make_broker()
    fill(broker.bootstrap, "orders", orders(), 3)
    few = SQL.format(twice="amount").replace('WHERE kind = "a"', "LIMIT 5")
    pipeline = pipeline_at(tmp_path, broker.bootstrap, few)
    monkeypatch.setenv("SPARK_WORKER_DIR", str(tmp_path / "work"))  # else beneath Spark's own files
    cluster = ("--set", "spark.master=local-cluster[2,1,1024]")  # a master and two workers, processes each
    with Job(pipeline, "--set", "source.max_rows=1000000", *cluster) as job:
        summary = job.finish()
    assert (summary["records"], summary["rows"], summary["bad"]) == (ROWS, 5, BAD)
    assert letters(tmp_path / "orders-table") == BAD
    partitions = verified(pipeline)
    assert sum(each["left_out"] for each in partitions) == ROWS - BAD - 5


@pytest.mark.parametrize("engine", ["kafkad", "kafka-jar"], indirect=True)
def test_dedup_with_dead_letters_reads_a_topic_once_and_keeps_each_key_once(make_broker, tmp_path, engine):
    broker = make_broker()
    fill(broker.bootstrap, "orders", orders(), 3)
    produce(broker.bootstrap, "orders", orders())
    dedup = '[dedup]\nkeys = ["id"]\nwatermark = "1 hour"\n[dlq]\ntopic = "orders-bad"'
    pipeline = pipeline_at(tmp_path, broker.bootstrap, dedup)
    summary = engine(pipeline, "--set", f"source.max_rows={ROWS}")
    assert (summary["records"], summary["rows"], summary["bad"]) == (2 * ROWS, ROWS - BAD, 2 * BAD)
    assert summary["bytes"] == 2 * sum(len(key) + len(value) for key, value in orders())
    table = tmp_path / "orders-table"
    assert letters(table) == 2 * BAD
    wanted = [(ROWS - BAD, ROWS - BAD, sum(set(range(ROWS)) - STRANGE - {BROKEN}))]
    assert landed(table, "SELECT count(*), count(DISTINCT id), sum(amount) FROM landed") == wanted
    sources = (table / "_kafkad/checkpoint/spark/offsets/0").read_text().splitlines()[2:]
    assert len(sources) == 1
    partitions = verified(pipeline)
    assert sum(each["left_out"] for each in partitions) == ROWS - BAD
    sent = sent_letters(broker.bootstrap, "orders-bad")
    places = {(row["kafkad.partition"], row["kafkad.offset"]) for row in sent}
    assert len(sent) == len(places) == 2 * BAD
    replay = kafkad("ingest", "replay-dlq", str(pipeline), check=False)
    assert replay.returncode == 1 and "take [dedup] out of the file" in replay.stderr


def scraped(port):
    """Prometheus' numbers, by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    assert all('{pipeline="orders"}' in line for line in lines)
    return {line.split("{")[0]: float(line.split()[-1]) for line in lines}


def test_a_run_with_an_interval_goes_on_with_what_comes_and_tells_its_metrics(make_broker, tmp_path):
    broker = make_broker()
    fill(broker.bootstrap, "orders", orders(500), 3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    more = f'[trigger]\ninterval = "200 ms"\n[metrics]\nprometheus = {port}\njsonl = "metrics.jsonl"'
    pipeline = pipeline_at(tmp_path, broker.bootstrap, more)
    with Job(pipeline) as job:
        batches, records = iter(job), 0
        for wanted in (500, 1000, 1500):
            while records < wanted:
                records += next(batches)["records"]
            if wanted < 1500:
                produce(broker.bootstrap, "orders", orders(500))
        told = scraped(port)
        status = json.loads(kafkad("ingest", "status", str(pipeline), "--json").stdout)
        busy = kafkad("ingest", "replay-dlq", str(pipeline), check=False)
        job.process.send_signal(signal.SIGTERM)
        summary = job.finish(143)
    assert (summary["ended"], summary["records"], summary["lag"]) == ("SIGTERM", 1500, 0)
    assert (status["running"], status["lag"], status["rows"]) == (True, 0, summary["rows"])
    assert busy.returncode == 1 and "is being run already" in busy.stderr
    counted = {"records": "records_total", "rows": "rows_total", "bad": "bad_records_total",
               "bytes": "bytes_total", "batches": "batches_total", "files": "files_total"}  # fmt: skip
    for name, metric in counted.items():
        assert told[f"kafkad_ingest_{metric}"] == summary[name], name
    assert (
        summary["bad"]
        == 3 * len([n for n in STRANGE | {BROKEN} if n < 500])
        == letters(tmp_path / "orders-table")
    )
    assert told["kafkad_ingest_lag_records"] == 0
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == summary["batches"]
    assert sum(row["rows"] for row in rows) == rows[-1]["totals"]["rows"] == summary["rows"]
    verified(pipeline)
