"""The ingest job: PySpark Structured Streaming from a topic to typed Parquet, partitioned, and to its end.

    python -m kafkad.demo.ingest --bootstrap 127.0.0.1:9092 --topic flights --schema "year INT, ..." \\
        --partition-by month --table ./table --checkpoint ./checkpoint

It takes what is in the topic when it starts (trigger available-now), in batches of --batch-rows, and ends.
Run again with the same checkpoint it goes on where it was, also after a crash of its own or of the broker:
Spark commits a batch's offsets and files once, so that every record lands exactly once.

Each finished batch is one line of JSON on stdout: {"batch": 3, "rows": 60000}.
Beware: of the files in the table only those that its _spark_metadata lists count (see landed.py); a batch
that failed leaves others behind.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
POLL_S = 0.1


def session(jars: Path | None, cores: int) -> SparkSession:
    """A local Spark with the Kafka connector: from a directory of jars, else by its Maven coordinates."""
    # without this the workers take whatever python3 they find
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    import pyspark
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    builder = (
        builder.master(f"local[{cores}]")
        .appName("kafkad-ingest")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", str(cores))
        .config("spark.sql.session.timeZone", "UTC")
    )
    if jars is not None:
        builder = builder.config("spark.jars", ",".join(str(path) for path in sorted(jars.glob("*.jar"))))
    else:
        builder = builder.config("spark.jars.packages", f"{CONNECTOR}:{pyspark.__version__}")
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def ingest(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    schema: str,
    partition_by: str,
    table: Path,
    checkpoint: Path,
    batch_rows: int,
) -> int:
    """Runs the query to the end of the topic; returns this run's rows. Raises what made the query fail."""
    from pyspark.sql.functions import col, from_json

    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch_rows)
        .option("failOnDataLoss", "true")
        .load()
    )
    value = from_json(col("value").cast("string"), schema, {"mode": "FAILFAST"})
    rows = source.select(
        value.alias("row"),
        col("partition").alias("kafka_partition"),
        col("offset").alias("kafka_offset"),
        col("timestamp").alias("kafka_timestamp"),
    ).select("row.*", "kafka_partition", "kafka_offset", "kafka_timestamp")
    query = (
        rows.writeStream.format("parquet")
        .partitionBy(partition_by)
        .option("path", str(table))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    reported, total = -1, 0
    while True:
        active = query.isActive  # before the progress is read, so that the last of it is not missed
        for progress in query.recentProgress:
            if progress["batchId"] > reported and progress["numInputRows"]:
                reported = progress["batchId"]
                total += progress["numInputRows"]
                print(json.dumps({"batch": reported, "rows": progress["numInputRows"]}), flush=True)
        if not active:
            break
        time.sleep(POLL_S)
    query.awaitTermination()
    return total


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--bootstrap", default="127.0.0.1:9092", show_default=True)
@click.option("--topic", required=True)
@click.option("--schema", required=True, help="Of the JSON values, as Spark SQL writes it.")
@click.option("--partition-by", required=True, help="The column whose values become the table's directories.")
@click.option("--table", required=True, type=click.Path(path_type=Path))
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path))
@click.option("--batch-rows", default=60_000, show_default=True)
@click.option("--cores", default=2, show_default=True)
@click.option("--jars", type=click.Path(path_type=Path), help="A directory with the connector's jars.")
def main(
    bootstrap: str,
    topic: str,
    schema: str,
    partition_by: str,
    table: Path,
    checkpoint: Path,
    batch_rows: int,
    cores: int,
    jars: Path | None,
) -> None:
    """Land a topic of JSON values as Parquet, exactly once."""
    spark = session(jars, cores)
    try:
        ingest(spark, bootstrap, topic, schema, partition_by, table, checkpoint, batch_rows)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
