"""`kafkad ingest` as its commands promise it: dead letters, SQL, dedup, triggers, metrics.

Each start of Spark costs seconds, so that a test here is a story of several promises.
"""

import json

import pytest

from tests.ingest_world import SPARK, Job, fill, kafkad, landed, letters, verified

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(300)]

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


def test_sql_with_dead_letters_reads_each_record_once_and_replays_them_by_the_same_sql(make_broker, tmp_path):
    broker = make_broker()
    fill(broker.bootstrap, "orders", orders(), 3)
    pipeline = pipeline_at(tmp_path, broker.bootstrap, SQL.format(twice="amount * 2"))
    table = tmp_path / "orders-table"
    plan = json.loads(kafkad("ingest", "plan", str(pipeline), "--json").stdout)
    assert plan["configuration"]["dlq.path"] == {"value": f"{table}/_dlq", "from": "default"}

    with Job(pipeline) as job:
        summary = job.finish()
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
