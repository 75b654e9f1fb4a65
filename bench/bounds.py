"""The bounds that kafkad must meet, one row each, and the check whether they are met.

A bound is on the median of one figure of one scenario: a ratio to JVM Kafka in the same run, a ratio to
another scenario of kafkad, or an absolute value. Pure functions: results in, verdicts out.
"""

from typing import Any, NamedTuple

ROUNDS_MIN = 5  # of medians that decide
KAFKA = "Kafka"  # `against`: the first JVM Kafka of the run
ABSOLUTE = ""
OURS = "kafkad"

Results = dict[str, dict[str, dict[str, dict[str, Any]]]]  # group, scenario, broker, figure -> summary


class Bound(NamedTuple):
    scenario: str
    figure: str
    at_least: bool  # else at most
    value: float
    against: str = KAFKA  # or ABSOLUTE, or the name of a scenario of ours


class Verdict(NamedTuple):
    bound: Bound
    ours: float | None  # median
    theirs: float | None  # what it is compared with; None for absolute bounds
    rounds: int

    @property
    def measured(self) -> float | None:
        """The figure that the bound is about: a ratio, or the median itself."""
        if self.bound.against == ABSOLUTE:
            return self.ours
        if self.ours is None or not self.theirs:
            return None
        return self.ours / self.theirs

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.measured is None:
            return None
        if self.bound.at_least:
            return self.measured >= self.bound.value
        return self.measured <= self.bound.value


LEAST, MOST = True, False
OLD_MB_MORE = 8  # of one run: flat, since a conversion holds pieces and gives them back
RECOVERY = "unclean recovery"
KILLED = "partitions of a killed worker"
TRANSACTIONAL = "64 KB batches of librdkafka, transactional"
IDEMPOTENT = "64 KB batches of librdkafka, idempotent"
ONE_OLD, ONE_NEW = "1 record a transaction, librdkafka (TV1)", "1 record a transaction, frames (TV2)"
ONE_OLD_FRAMES = "1 record a transaction, frames (TV1)"
MANY = "10 records a transaction, 50 producers (TV2)"
COPIES = "copies of 200 records a transaction, librdkafka"
UNCOMMITTED, COMMITTED = "read_uncommitted behind aborts", "read_committed behind aborts"
IDS = "empty transactional ids"
CLEAN_SMALL, CLEAN_LARGE = "clean 100 B records", "clean 1 KB records"
CLEAN_COMPRESSED = {codec: f"clean 1 KB records, {codec}" for codec in ("gzip", "lz4", "zstd")}
HELD_ALONE, BESIDE_CLEANER = "60 MB/s held, no cleaner at work", "60 MB/s held beside the cleaner"
CLUSTER_64, CLUSTER_SMALL = (
    "3 brokers, acks=all, 64 KB batches",
    "3 brokers, acks=all, 16 KB batches of 100 B",
)
CLUSTER_HELD = "3 brokers, acks=all, 20 MB/s held, 16 KB batches"
CLUSTER_CATCH_UP, CLUSTER_IDLE = "3 brokers, catch-up of a follower", "3 brokers idle, 1,000 partitions each"
HANDSHAKES = "TLS handshakes"
FLOODS_ALONE = "20 MB/s held over TLS, no flood"
FLOODS = {
    "handshakes": "20 MB/s held over TLS beside 1,000 handshakes/s",
    "PLAIN": "20 MB/s held over TLS beside 500 logins/s by PLAIN over TLS",
    "SCRAM-SHA-256": "20 MB/s held over TLS beside 500 logins/s by SCRAM over TLS",
    "refused": "20 MB/s held over TLS beside 500 wrong passwords/s over TLS",
}
STALL_MS = 5
TLS_IDLE = "5,000 idle TLS connections"
NO_ACLS, MANY_ACLS = "2 KB batches, no authorizer", "2 KB batches, 1,000 ACLs"
CONNECTIONS_ALONE = "50 busy connections alone"
CONNECTIONS_MANY = "50 busy of 10,000 connections"


def old_format(load: str, codec: str) -> str:
    """The scenario of a client of before Kafka 0.11."""
    return f"{load} format 1, 1 KB, {codec}"


# fmt: off
BOUNDS = (
    Bound("produce 64 KB batches of 1 KB",     "MB/s",           LEAST, 2.2),
    Bound("produce 64 KB batches of 1 KB",     "CPU s/GB",       MOST,  1 / 3.2),
    Bound("produce 1 MB batches of 1 KB",      "MB/s",           LEAST, 1.4),
    Bound("produce 1 MB batches of 1 KB",      "CPU s/GB",       MOST,  1 / 2.2),
    Bound("produce 16 KB batches of 100 B",    "MB/s",           LEAST, 2.5),
    Bound("produce 16 KB batches of 100 B",    "CPU s/GB",       MOST,  1 / 4),
    Bound("produce 1 record of 100 B a batch", "requests/s",     LEAST, 1.8),
    Bound("produce 1 record of 100 B a batch", "CPU us/request", MOST,  1 / 3),
    Bound("produce 2 KB batches, 50 conn.",    "requests/s",     LEAST, 1.8),
    Bound("produce 2 KB batches, 50 conn.",    "CPU us/request", MOST,  1 / 3),
    Bound("produce 60 MB/s held, 50 conn.",    "p50 ms",         MOST,  2 / 3),
    Bound("produce 60 MB/s held, 50 conn.",    "p99 ms",         MOST,  2 / 3),
    Bound("produce 60 MB/s held, 50 conn.",    "CPU s/GB",       MOST,  1 / 3),
    Bound("fetch 64 KB responses",             "MB/s",           LEAST, 1.6),
    Bound("fetch 64 KB responses",             "CPU s/GB",       MOST,  1 / 2.5),
    Bound("fetch 1 MB responses",              "MB/s",           LEAST, 0.9),
    Bound("fetch 1 MB responses",              "CPU s/GB",       MOST,  1),
    Bound("fetch 64 KB responses over TLS",    "MB/s",           LEAST, 2),
    Bound("fetch 64 KB responses over TLS",    "CPU s/GB",       MOST,  1 / 2.5),
    Bound("fetch 1 MB responses over TLS",     "MB/s",           LEAST, 2),
    Bound("fetch 1 MB responses over TLS",     "CPU s/GB",       MOST,  1 / 2.5),
    Bound("produce 64 KB batches of 1 KB over TLS", "MB/s",      LEAST, 1.8),
    Bound("produce 64 KB batches of 1 KB over TLS", "CPU s/GB",  MOST,  1 / 2.5),
    Bound("produce 1 record of 100 B a batch over TLS", "requests/s", LEAST, 2),
    Bound(TLS_IDLE,                            "PSS MB",         MOST,  1 / 3),
    *(Bound(name,                              "p99 ms",         MOST,  STALL_MS, ABSOLUTE)
      for name in FLOODS.values()),
    Bound(MANY_ACLS,                           "CPU us/request", MOST,  1.03, NO_ACLS),
    Bound("disk, fsync before ack: 64 KB batches", "MB/s",       LEAST, 2.5),
    Bound("disk, fsync before ack: 64 KB batches", "MB/s",       LEAST, 0.6, "disk: 64 KB batches"),
    Bound("disk, fsync before ack: 2 KB batches, 50 conn.", "requests/s", LEAST, 3),
    Bound("start to first Metadata",           "seconds",        MOST,  1 / 8),
    Bound("restart after kill -9 under load",  "seconds",        MOST,  1 / 10),
    Bound("idle memory",                       "PSS MB",         MOST,  1 / 8),
    Bound("memory under load",                 "PSS MB",         MOST,  1 / 6),
    Bound("5,000 partitions",                  "restart s",      MOST,  1 / 8),
    Bound("5,000 partitions",                  "PSS MB",         MOST,  1 / 5),
    Bound(TRANSACTIONAL,                       "MB/s",           LEAST, 0.97, IDEMPOTENT),
    Bound(TRANSACTIONAL,                       "CPU s/GB",       MOST,  1.03, IDEMPOTENT),
    Bound(ONE_OLD,                             "transactions/s", LEAST, 3),
    Bound(ONE_OLD,                             "commit p50 ms",  MOST,  1 / 3),
    Bound(ONE_OLD_FRAMES,                      "transactions/s", LEAST, 3),
    Bound(ONE_OLD_FRAMES,                      "commit p50 ms",  MOST,  1 / 3),
    Bound(ONE_NEW,                             "transactions/s", LEAST, 3),
    Bound(ONE_NEW,                             "commit p50 ms",  MOST,  1 / 3),
    Bound(MANY,                                "transactions/s", LEAST, 2),
    Bound(MANY,                                "CPU us/transaction", MOST, 1 / 2),
    Bound(COPIES,                              "records/s",      LEAST, 1.5),
    Bound(COMMITTED,                           "MB/s",           LEAST, 0.95, UNCOMMITTED),
    Bound(IDS,                                 "ready s",        MOST,  1 / 5),
    Bound(IDS,                                 "MB more",        MOST,  80, ABSOLUTE),
    Bound(CLEAN_SMALL,                         "MB/s",           LEAST, 5),
    Bound(CLEAN_LARGE,                         "MB/s",           LEAST, 5),
    *(Bound(name,                              "MB/s",           LEAST, 2)
      for name in CLEAN_COMPRESSED.values()),
    Bound(BESIDE_CLEANER,                      "p99 ms",         MOST,  1.1, HELD_ALONE),
    *(Bound(old_format(load, codec),           "MB/s",           LEAST, 2)
      for load in ("produce", "fetch") for codec in ("none", "gzip")),
    *(Bound(old_format(load, codec),           "MB more",        MOST,  OLD_MB_MORE, ABSOLUTE)
      for load in ("produce", "fetch") for codec in ("none", "gzip")),
    Bound(CLUSTER_64,                          "MB/s",           LEAST, 2.5),
    Bound(CLUSTER_64,                          "CPU s/GB",       MOST,  1 / 3),
    Bound(CLUSTER_SMALL,                       "MB/s",           LEAST, 3),
    Bound(CLUSTER_SMALL,                       "CPU s/GB",       MOST,  1 / 4),
    Bound(CLUSTER_HELD,                        "p50 ms",         MOST,  1 / 2),
    Bound(CLUSTER_HELD,                        "p99 ms",         MOST,  1 / 2),
    Bound(CLUSTER_CATCH_UP,                    "MB/s",           LEAST, 2),
    Bound(CLUSTER_IDLE,                        "PSS MB",         MOST,  1 / 6),
    Bound(RECOVERY,                            "GB/s",           LEAST, 2, ABSOLUTE),
    Bound(KILLED,                              "last ack ms",    MOST,  1000, ABSOLUTE),
    Bound(KILLED,                              "last fetch ms",  MOST,  1000, ABSOLUTE),
    Bound(CONNECTIONS_MANY,                    "requests/s",     LEAST, 0.9, CONNECTIONS_ALONE),
    Bound(CONNECTIONS_MANY,                    "KB/idle connection", MOST, 8, ABSOLUTE),
)
# fmt: on


def flat(results: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Scenarios without their groups; their names are unique."""
    return {name: row for group in results.values() for name, row in group.items()}


def reference(brokers: Any) -> str | None:
    """The broker that ratios are against: the first JVM Kafka."""
    return next((name for name in brokers if name.startswith(KAFKA)), None)


def check(results: Results, bounds: tuple[Bound, ...] = BOUNDS) -> list[Verdict]:
    scenarios = flat(results)
    verdicts = []
    for bound in bounds:
        row = scenarios.get(bound.scenario, {})
        ours = row.get(OURS, {}).get(bound.figure)
        if bound.against == KAFKA:
            theirs = row.get(reference(row) or "", {}).get(bound.figure)
        else:
            theirs = scenarios.get(bound.against, {}).get(OURS, {}).get(bound.figure)
        verdicts.append(
            Verdict(
                bound,
                ours["median"] if ours else None,
                theirs["median"] if theirs else None,
                min(len(side["rounds"]) for side in (ours, theirs) if side) if ours else 0,
            )
        )
    return verdicts
