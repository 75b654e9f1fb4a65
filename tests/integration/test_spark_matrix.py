"""The certification with Spark's own connector stays true: a short form of tools/spark_matrix.py, against
kafkad and JVM Kafka, and the table of docs/spark.md, which holds the whole of it.

One Spark and both brokers for all cases; what a case does and what it compares is said in
tools/spark_cases.py.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkad.protocol import codec, messages
from tests.sparks import INTERPRETED, SPARK_JVM, end, prepare_spark

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import spark_matrix  # noqa: E402
from counting_proxy import CountingProxy, RequestHeads  # noqa: E402
from spark_cases import CASES  # noqa: E402
from spark_world import World, make_spark  # noqa: E402

# what takes long everywhere (a JVM that was killed, a poll that must time out) is left to the whole matrix
SHORT = [
    "batch: starting and ending offsets, -2, -1, earliest, latest",
    "batch: starting and ending timestamp, for all and by partition",
    "batch: includeHeaders",
    "batch: null and empty keys and values",
    "batch: minPartitions and maxRecordsPerPartition",
    "batch: every codec",
    "stream: maxOffsetsPerTrigger",
    "stream: a partition is added while it runs",
    "stream: DeleteRecords passes the checkpoint, failOnDataLoss=true",
    "batch: holes of a compacted topic",
    "stream: read_committed over commits, aborts and an open transaction",
    "sink: batch, with headers and nulls, the option topic",
    "sink: streaming, two runs over one checkpoint",
]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, pytestconfig):
    scratch = tmp_path_factory.mktemp("spark-matrix")
    with ExitStack() as until_the_end:
        prepare_spark()
        spark = make_spark(**INTERPRETED, **{"spark.driver.extraJavaOptions": " ".join(SPARK_JVM)})
        until_the_end.callback(end, spark)
        secured = pytestconfig.getoption("secured")
        proxies = [until_the_end.enter_context(CountingProxy()) for _ in spark_matrix.SHOWN]
        yield [
            until_the_end.enter_context(World(kind, spark, scratch, proxy, secured))
            for kind, proxy in zip(spark_matrix.SHOWN, proxies, strict=True)
        ]


@pytest.mark.spark
@pytest.mark.java
@pytest.mark.secured
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SHORT)
def test_spark_gets_from_kafkad_what_it_gets_from_kafka(worlds, name):
    cell = {world.kind: spark_matrix.run_case(world, name) for world in worlds}
    assert {kind: each["trace"] for kind, each in cell.items() if "error" in each} == {}
    assert cell["kafkad"]["result"] == cell["jvm"]["result"]
    if not worlds[0].is_secured:
        assert cell["kafkad"]["requests"]["Metadata"] > 0  # it went through the proxy


def test_the_certificate_in_the_docs_names_every_case_and_each_is_equal():
    text = (ROOT / "docs" / "spark.md").read_text()
    table = text.partition(spark_matrix.BEGIN)[2].partition(spark_matrix.END)[0]
    rows = {}
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith("| case |"):
            name, *said = [part.strip() for part in line.strip("|").split("|")]
            rows[name] = set(said[:-1])
    assert rows.keys() == CASES.keys()
    assert {name: said for name, said in rows.items() if said != {"equal"}} == {}


def request(key: int, client_id: str, padding: int) -> bytes:
    body = messages.request_class(3)(topics=[messages.MetadataRequest.Topics(name="t" * padding)])
    frame = codec.encode_request(body, 1 if key % 2 else 12, key, client_id)
    return len(frame).to_bytes(4, "big") + frame


@given(
    st.lists(st.tuples(st.integers(0, 9), st.text(max_size=9), st.integers(0, 300)), max_size=5),
    st.lists(st.integers(1, 40), max_size=60),
)
def test_the_proxy_sees_each_request_in_whatever_pieces_it_comes(asked, cuts):
    sent = b"".join(request(*each) for each in asked)
    heads, seen, at = RequestHeads(), [], 0
    for size in [*cuts, len(sent)]:
        seen += heads.feed(sent[at : at + size])
        at += size
    assert seen == [(3, 1 if key % 2 else 12, client_id) for key, client_id, _ in asked]


def test_a_difference_of_two_results_is_told_by_its_place():
    ours, theirs = {"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}
    lines = spark_matrix.difference("", ours, theirs)
    assert lines == [".a[1].b: kafkad 2", ".a[1].b: jvm    3"]
    assert spark_matrix.difference("", ours, ours) == []
    cell = {kind: {"result": 1} for kind in spark_matrix.BROKERS}
    assert spark_matrix.verdict(cell) == "equal"
    assert spark_matrix.verdict({**cell, "kafkad-2": {"result": 2}}) == "DIFFERS"
    assert spark_matrix.verdict({**cell, "jvm": {"error": "it timed out"}}) == "did not end on jvm"
    assert spark_matrix.verdict({"jvm": {"result": 1}}) == "not run on kafkad, kafkad-2"
