"""The main job, as `make demo` runs it: real flights, a real producer, Spark, Parquet, and a kill -9."""

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def all_flights():
    from kafkad.demo import flights

    return flights.load()


@pytest.mark.soak_only  # the next one shows it, too
def test_every_flight_lands_once(make_broker, all_flights, tmp_path):
    from kafkad.demo import __main__ as demo

    assert all_flights.num_rows == 336_776
    outcome = demo.run(make_broker(), "flights", all_flights, tmp_path / "run")
    assert sum(outcome.written.values()) == 336_776
    assert min(outcome.written.values()) > 50_000
    assert [row["rows"] for row in outcome.by_month][:3] == [
        27004,
        24951,
        28834,
    ]  # as R's documentation counts them
    assert outcome.job_starts == 1


def test_the_same_table_though_the_broker_is_killed_in_the_middle(make_broker, all_flights, tmp_path):
    from kafkad.demo import __main__ as demo

    outcome = demo.run(make_broker(), "flights", all_flights, tmp_path / "run", kill=True)
    assert outcome.killed_at_rows is not None
    assert outcome.killed_at_rows < 336_776
    assert sum(row["rows"] for row in outcome.by_month) == 336_776


class TestTheProofItself:
    """It would be worth little if it could not fail."""

    @pytest.fixture
    def sent(self, all_flights):
        return all_flights.slice(0, 1000)

    @pytest.fixture
    def rows(self, sent):
        import pyarrow as pa

        place = pa.table({"_partition": pa.array([0] * 1000, pa.int32()), "_offset": pa.array(range(1000))})
        return pa.table([*sent.columns, *place.columns], names=[*sent.column_names, *place.column_names])

    def test_the_same_rows_in_another_order_pass(self, rows, sent):
        from kafkad.demo import landed

        landed.prove_equal(rows.sort_by([("_offset", "descending")]), sent)
        landed.prove_offsets(rows, {0: 1000})

    @pytest.mark.parametrize("take", [slice(0, 999), [*range(999), 998]], ids=["one lost", "one doubled"])
    def test_a_lost_or_doubled_row_fails(self, rows, sent, take):
        from kafkad.demo import landed

        indexes = list(range(1000))[take] if isinstance(take, slice) else take
        wrong = rows.take(indexes)
        with pytest.raises(landed.Unproven):
            landed.prove_equal(wrong, sent)
        with pytest.raises(landed.Unproven):
            landed.prove_offsets(wrong, {0: 1000})

    def test_a_changed_value_fails(self, rows, sent):
        import pyarrow.compute as pc

        from kafkad.demo import landed

        index = rows.column_names.index("distance")
        wrong = rows.set_column(index, "distance", pc.add(rows["distance"], 1).cast("int32"))
        with pytest.raises(landed.Unproven, match="distance"):
            landed.prove_equal(wrong, sent)

    def test_every_parquet_file_counts_wherever_it_lies(self, sent, tmp_path):
        import pyarrow as pa
        from pyarrow import parquet

        from kafkad.demo import landed

        place = pa.table({"_partition": pa.array([0] * 1000, pa.int32()), "_offset": pa.array(range(1000))})
        rows = pa.table([*sent.columns, *place.columns], names=[*sent.column_names, *place.column_names])
        for folder in ("month=1", "month=1/left-behind"):
            (tmp_path / folder).mkdir()
            parquet.write_table(rows.drop_columns("month"), tmp_path / folder / "a.parquet")
        assert landed.read(tmp_path, sent.schema).num_rows == 2000
