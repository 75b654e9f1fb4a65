"""`kafkad ingest` where things go wrong: a full disk, a broker that does not come back, topics that are not
what they were, files that say nonsense. One sentence and an exit code, nothing half done, and it goes on
afterwards.
"""

import base64
import os
import random
import signal
import socket
import time

import pytest

from kafkad.ingest.backlog import Backlog
from kafkad.ingest.checkpoint import Checkpoint
from kafkad.ingest.pipeline_file import load
from kafkad.ingest.tasks import range_batches
from kafkad.spark.range_reader import DataLoss
from tests.ingest_world import SPARK, Job, fill, kafkad, landed, produce, run_to_end, verified
from tests.small_disk import small_disk

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(400)]

ROWS, BATCH = 3000, 1000


def lines(count=ROWS, size=600):
    """Records that no codec makes small."""
    chance = random.Random(5)
    for n in range(count):
        yield b"%d" % n, base64.b64encode(chance.randbytes(size))


def pipeline_at(place, bootstrap, sink="table", more="", source=""):
    file = place / "lines.toml"
    file.write_text(f"""
[source]
bootstrap = "{bootstrap}"
topics = "lines"
max_rows = {BATCH}
retry_for = "3 seconds"
{source}
[sink]
path = "{sink}"
{more}
{SPARK}
""")
    return file


def refused(pipeline, said, *arguments, code=1, command="run"):
    """By sentences of which one has `said`; answers stderr."""
    done = kafkad("ingest", command, str(pipeline), *arguments, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr
    return done.stderr


def leave_room(disk, left):
    """A file that takes the rest."""
    stat = os.statvfs(disk)
    size = max(0, stat.f_bavail * stat.f_frsize - left)
    (disk / "ballast").write_bytes(b"")
    with open(disk / "ballast", "ab") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, size)


def test_a_full_disk_ends_the_run_with_nothing_half_landed_and_it_goes_on_when_there_is_room(
    make_broker, tmp_path
):
    broker = make_broker()
    fill(broker.bootstrap, "lines", lines(), 1)
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        pipeline = pipeline_at(tmp_path, broker.bootstrap, "disk/table")
        leave_room(disk, 1 << 20)  # for the first batch, not for the second
        told = refused(pipeline, f"a file in {disk}/table cannot be written: No space left on device")
        assert len([line for line in told.splitlines() if line.startswith("kafkad")]) == 1, told
        assert landed(disk / "table", "SELECT count(*), count(DISTINCT key) FROM landed") == [(BATCH, BATCH)]
        partitions = verified(pipeline)
        assert sum(each["rows"] for each in partitions) == BATCH

        (disk / "ballast").unlink()
        leave_room(disk, 0)
        refused(pipeline, "No space left on device")  # before Spark is started, this time
        (disk / "ballast").unlink()
        assert run_to_end(pipeline)["rows"] == ROWS - BATCH
        assert sum(each["rows"] for each in verified(pipeline)) == ROWS
        names = [name for _, _, files in os.walk(disk) for name in files]
        assert not [name for name in names if name.endswith((".staged", ".scratch"))], names


def test_a_broker_that_does_not_come_back_and_topics_that_are_not_what_they_were(make_broker, tmp_path):
    from confluent_kafka.admin import AdminClient

    broker = make_broker()
    fill(broker.bootstrap, "lines", lines(size=100), 1)
    pipeline = pipeline_at(tmp_path, broker.bootstrap)
    with Job(pipeline) as job:
        next(iter(job))
        broker.kill()
        job.finish(1)
    told = job.errors.read_text()
    assert "kafkad: batch 2 failed after" in told, told
    assert "Traceback" not in told
    seen = len([line for line in told.splitlines() if line.startswith("kafkad")])
    refused(pipeline, broker.bootstrap)  # it is not even asked for long
    broker.restart()
    assert run_to_end(pipeline)["rows"] == ROWS - BATCH
    verified(pipeline)
    assert seen < 10

    # what is planned is looked at before Spark is started, so these cost little
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["lines"])["lines"].result(30)
    refused(pipeline, "lines-0 is gone: data may be lost; [source] fail_on_data_loss = false")
    fill(broker.bootstrap, "lines", lines(ROWS * 2, 10), 1)
    refused(pipeline, f"lines-0 was to go on at {ROWS} and was made anew")
    anyway = ("--set", "source.fail_on_data_loss=false")
    refused(pipeline, "land it in another table", *anyway)
    assert landed(tmp_path / "table", "SELECT count(*), max(_offset) FROM landed") == [(ROWS, ROWS - 1)]

    other = pipeline_at(
        tmp_path, broker.bootstrap, "other", source=f'start = \'{{"lines": {{"0": {ROWS * 9}}}}}\''
    )
    refused(other, f"lines-0 was to go on at {ROWS * 9} and ends at {ROWS * 2}")
    assert run_to_end(other, *anyway)["rows"] == ROWS * 2
    verified(other)


def test_a_batch_that_was_planned_is_not_read_from_a_topic_that_was_made_anew(make_broker, tmp_path):
    """Its offsets are there, and have other records."""
    from confluent_kafka.admin import AdminClient

    broker = make_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    pipeline = pipeline_at(tmp_path, broker.bootstrap)
    fill(broker.bootstrap, "lines", lines(BATCH, size=10), 1)
    run_to_end(pipeline)
    produce(broker.bootstrap, "lines", lines(BATCH, size=10))
    with Checkpoint(tmp_path / "table/_kafkad/checkpoint", "lines") as checkpoint:  # as by a run that died
        checkpoint.plan({("lines", 0): BATCH}, {("lines", 0): 2 * BATCH})
    admin.delete_topics(["lines"])["lines"].result(30)
    fill(broker.bootstrap, "lines", lines(4 * BATCH, size=10), 1)
    lost = "batch 2 was not landed before lines was deleted and made anew"
    refused(pipeline, f"{lost}: data may be lost; [source] fail_on_data_loss = false")
    told = refused(pipeline, f"{lost}, and is landed without", "--set", "source.fail_on_data_loss=false")
    assert "land it in another table" in told
    assert landed(tmp_path / "table", "SELECT count(*), max(_offset) FROM landed") == [(BATCH, BATCH - 1)]
    options = Backlog(load(pipeline, {})).options
    with pytest.raises(DataLoss, match="one of the same name was created"):  # while the run is alive
        list(range_batches(options, "lines", 0, BATCH, BATCH + 1, "0123456789abcdef" * 2))


def test_a_stream_is_not_taken_up_in_a_topic_that_was_made_anew(make_broker, tmp_path):
    from confluent_kafka.admin import AdminClient

    broker = make_broker()
    dedup = '[dedup]\nkeys = ["key"]\nwatermark = "1 hour"'
    pipeline = pipeline_at(tmp_path, broker.bootstrap, more=dedup)
    fill(broker.bootstrap, "lines", lines(BATCH, size=10), 1)
    assert run_to_end(pipeline)["rows"] == BATCH
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["lines"])["lines"].result(30)
    fill(broker.bootstrap, "lines", lines(2 * BATCH, size=10), 1)
    for more in ((), ("--set", "source.fail_on_data_loss=false")):
        refused(pipeline, "lines was deleted and made anew: records are told by topic", *more)


def test_a_run_that_is_to_end_does_not_wait_for_a_broker_that_is_away(make_broker, tmp_path):
    broker = make_broker()
    fill(broker.bootstrap, "lines", lines(100, size=100), 1)
    pipeline = pipeline_at(tmp_path, broker.bootstrap, more='[trigger]\ninterval = "100 ms"')
    with Job(pipeline, "--set", "source.retry_for=100 seconds") as job:
        next(iter(job))
        broker.kill()
        time.sleep(1)
        job.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert job.finish(143)["rows"] == 100
    assert time.monotonic() - began < 20


def test_what_is_wrong_with_a_file_is_told_at_once_with_its_lines(tmp_path):
    pipeline = tmp_path / "p.toml"
    pipeline.write_text("""[source]
bootstrap = "127.0.0.1:1"
topic = "a"
max_rows = 0
retry_for = "soon"
[decode]
format = "jason"
[sink]
type = "parkett"
path = 7
[trigger]
interval = "1 minute"
available_now = "perhaps"
[metrics]
prometheus = 123456
[tranform]
sql = "SELECT 1"
[spark.conf]
x = ["a"]
""")
    for command in ("run", "plan", "validate", "status", "verify", "compact", "replay-dlq"):
        told = refused(pipeline, "p.toml:", code=2, command=command).splitlines()
        wanted = {
            3: "did you mean topics?",
            4: "at least 1",
            5: "a time with its unit",
            7: "did you mean json?",
            9: "did you mean parquet?",
            10: "a text",
            13: "true or false",
            15: "a port",
            16: "did you mean transform?",
            19: "must be a text, a number",
        }
        for line, said in wanted.items():
            assert any(f"p.toml:{line}: " in each and said in each for each in told), (line, said, told)
        assert len(told) == len(wanted), told


def test_a_port_that_is_taken_is_told(make_broker, tmp_path):
    broker = make_broker()
    fill(broker.bootstrap, "lines", lines(1, 10), 1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        pipeline = pipeline_at(tmp_path, broker.bootstrap, more=f"[metrics]\nprometheus = {port}")
        refused(pipeline, f"[metrics] prometheus = {port}: Address already in use")
