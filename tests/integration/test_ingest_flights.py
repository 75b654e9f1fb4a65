"""`kafkad ingest` on real flights, some of them damaged: the same table whatever is killed.

The suite kills driver, Spark worker and broker in one story of 40,000 flights, `make soak` (KAFKAD_SOAK=1) in
one of 6.7 million.
"""

import itertools
import json
import signal

import pytest

from kafkad.client.cluster import Cluster
from kafkad.client.transactions import Transactions
from tests.ingest_world import (
    SOAK,
    SPARK,
    STORY_SECONDS,
    Job,
    fill,
    kafkad,
    landed,
    letters,
    run_to_end,
    sent_letters,
    through_every_kill,
    verified,
)

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(STORY_SECONDS)]

FLIGHTS = 336_776 * 20 if SOAK else 40_000
BAD_EVERY = 1000
PARTITIONS = 4
TOTALS = "SELECT month, count(*), sum(distance), sum(air_time), sum(dep_delay) FROM {} GROUP BY 1 ORDER BY 1"


@pytest.fixture(scope="module")
def flights():
    from kafkad.demo import flights

    return flights.load(min(FLIGHTS, 336_776))


def sent(table):
    """Records of the flights, again and again up to FLIGHTS."""
    from kafkad.demo import flights

    return itertools.islice(itertools.chain.from_iterable(flights.records(table) for _ in range(99)), FLIGHTS)


def expected_totals(table):
    """Of what is sent and not damaged, by duckdb."""
    import duckdb

    rows = table.num_rows
    rounds = -(-FLIGHTS // rows)
    with duckdb.connect() as connection:
        connection.register("once", table)
        connection.execute("CREATE VIEW numbered AS SELECT *, row_number() OVER () AS n FROM once")
        again = f"SELECT *, n + again * {rows} AS place FROM numbered, range({rounds}) r(again)"
        good = f"SELECT * FROM ({again}) WHERE place <= {FLIGHTS} AND place % {BAD_EVERY} <> 0"
        return connection.execute(TOTALS.format(f"({good})")).fetchall()


def write_pipeline(place, bootstrap, batch_rows, more=""):
    from kafkad.demo import flights

    file = place / "flights.toml"
    file.write_text(f"""
[source]
bootstrap = "{bootstrap}"
topics = "flights"
max_rows = {batch_rows}
[decode]
format = "json"
schema = "{flights.SPARK_SCHEMA}"
bad_records = "dlq"
[dlq]
path = "table/_dlq"
topic = "flights-bad"
[sink]
path = "table"
partition_by = "month"
{more}
{SPARK}
""")
    return file


def abort_records(bootstrap):
    """No table may have them."""
    with Cluster(bootstrap) as cluster:
        transactions = Transactions(cluster, "aborter")
        producer = transactions.producer("flights")
        for number in range(100):
            producer.send(b"{}" if number % 2 else b"no flight", partition=number % PARTITIONS)
        producer.flush()
        transactions.abort()


def prove(place, pipeline, flights, counts, bootstrap):
    """Audit, counts, totals; and each dead letter once in its topic."""
    told = [
        (row["kafkad.topic"], row["kafkad.partition"], row["kafkad.offset"])
        for row in sent_letters(bootstrap, "flights-bad")
    ]
    assert len(told) == len(set(told)) == counts["bad"]
    partitions = verified(pipeline)
    assert sum(each["rows"] + each["in_dlq"] for each in partitions) == counts["sent"]
    assert sum(each["in_dlq"] for each in partitions) == counts["bad"] == letters(place / "table")
    assert landed(place / "table", TOTALS.format("landed")) == expected_totals(flights)
    twice = "SELECT count(*) - count(DISTINCT (_topic, _partition, _offset)) FROM landed"
    assert landed(place / "table", twice) == [(0,)]


@pytest.mark.soak
def test_the_same_table_though_driver_worker_and_broker_are_killed(make_broker, flights, tmp_path):
    broker = make_broker()
    counts = fill(broker.bootstrap, "flights", sent(flights), PARTITIONS, BAD_EVERY)
    assert counts["bad"] == FLIGHTS // BAD_EVERY
    abort_records(broker.bootstrap)
    pipeline = write_pipeline(tmp_path, broker.bootstrap, FLIGHTS // 10)

    through_every_kill(pipeline, broker)
    prove(tmp_path, pipeline, flights, counts, broker.bootstrap)

    status = json.loads(kafkad("ingest", "status", str(pipeline), "--json").stdout)
    assert (status["lag"], status["running"], status["rows"]) == (0, False, FLIGHTS - counts["bad"])
    assert status["dlq_rows"] == counts["bad"]
    told = kafkad("ingest", "status", str(pipeline)).stdout
    assert ["pipeline", status["pipeline"]] in [line.split() for line in told.splitlines()]
    kafkad("ingest", "compact", str(pipeline))
    prove(tmp_path, pipeline, flights, counts, broker.bootstrap)
    assert run_to_end(pipeline)["rows"] == 0  # nothing is left to read


def test_a_run_ends_after_its_batch_when_it_is_told_to_and_goes_on(make_broker, flights, tmp_path):
    broker = make_broker()
    few = flights.slice(0, 8000)
    from kafkad.demo.flights import records

    fill(broker.bootstrap, "flights", records(few), PARTITIONS)
    pipeline = write_pipeline(tmp_path, broker.bootstrap, 400)  # many, so that it is not done too soon
    with Job(pipeline) as job:
        next(iter(job))
        refused = kafkad("ingest", "run", str(pipeline), check=False)
        job.process.send_signal(signal.SIGTERM)
        summary = job.finish(143)
    assert refused.returncode == 1
    assert "is being run already" in refused.stderr
    assert summary["ended"] == "SIGTERM"
    landed_then = landed(tmp_path / "table", "SELECT count(*) FROM landed")[0][0]
    assert landed_then == summary["rows"] < 8000
    told = [json.loads(line) for line in kafkad("ingest", "run", str(pipeline)).stdout.splitlines()]
    sizes = [batch["records"] for batch in told if "batch" in batch]
    assert sum(sizes) == 8000 - landed_then
    assert max(sizes) <= 404 and min(sizes[:-1]) > 350  # shares are rounded, and a rest of 1% goes along
    assert landed(tmp_path / "table", "SELECT count(*) FROM landed") == [(8000,)]
    verified(pipeline)
