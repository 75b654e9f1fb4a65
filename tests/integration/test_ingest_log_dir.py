"""A pipeline whose source is a data directory: the records that the broker has, from its files."""

from tests.ingest_world import fill


def test_a_directory_is_planned_and_read_like_a_broker(make_broker, tmp_path):
    import pyarrow as pa

    from kafkad.ingest.backlog import Backlog
    from kafkad.ingest.pipeline_file import parse
    from kafkad.ingest.tasks import range_batches

    broker = make_broker()
    fill(broker.bootstrap, "t", [(None, b"%d" % i) for i in range(3000)], 2)
    broker.stop()  # and with it the high watermarks are on the disk

    def backlog(source):
        text = f'[source]\n{source}\ntopics = "t"\nmax_rows = 1000\n[sink]\npath = "x"\n'
        return Backlog(parse(text, tmp_path / "p.toml", {}))

    of_files = backlog(f'log_dir = "{broker.data_dir}"')
    of_files.look()
    start, end, lost = of_files.next(of_files.first())
    assert lost == 0
    assert 998 <= sum(end.values()) - sum(start.values()) <= 1002
    assert all(weight > 0 for weight in of_files.weights.values())
    values = [
        batch.column("value")
        for (topic, partition), at in of_files.latest.items()
        if at
        for batch in range_batches(of_files.options, topic, partition, 0, at)
    ]
    assert sorted(int(value) for value in pa.chunked_array(values).to_pylist()) == list(range(3000))
