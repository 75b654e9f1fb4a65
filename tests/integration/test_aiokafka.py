"""aiokafka: its own protocol code over asyncio, and older versions of the requests than the others send."""

import asyncio
import time
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from tests.clients import WAIT_S, create_topic
from tests.logins import aiokafka

pytestmark = [pytest.mark.workers(2), pytest.mark.secured]

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def run(coroutine):
    async def limited():
        return await asyncio.wait_for(coroutine, 2 * WAIT_S)

    return asyncio.run(limited())


@pytest.fixture
def new_topic(broker):
    return lambda partitions=1, **config: create_topic(
        broker,
        f"aiokafka-{uuid.uuid4().hex[:8]}",
        partitions,
        {k.replace("_", "."): v for k, v in config.items()},
    )


def consumer(broker, *topics, **config):
    config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    return AIOKafkaConsumer(*topics, **aiokafka(broker), **config)


async def read(client: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    return [await asyncio.wait_for(client.getone(), WAIT_S) for _ in range(count)]


async def until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.secured(short=True)
def test_every_codec(broker, new_topic, codec):
    topic = new_topic()
    sent = [(b"%d" % n, b"value %d " % n * 10) for n in range(200)]

    async def scenario():
        producer = AIOKafkaProducer(**aiokafka(broker), compression_type=codec, linger_ms=5)
        async with producer:
            futures = [await producer.send(topic, value, key) for key, value in sent]
            metadata = await asyncio.gather(*futures)
        assert [row.offset for row in metadata] == list(range(200))
        async with consumer(broker, topic) as reader:
            return await read(reader, 200)

    assert [(record.key, record.value) for record in run(scenario())] == sent


@pytest.mark.parametrize(
    "options", [{"acks": 0}, {"acks": 1}, {"acks": "all"}, {"enable_idempotence": True}], ids=str
)
def test_every_acks(broker, new_topic, options):
    topic = new_topic()

    async def scenario():
        async with AIOKafkaProducer(**aiokafka(broker), **options) as producer:
            for n in range(50):
                await producer.send_and_wait(topic, b"%d" % n)
        async with consumer(broker, topic) as reader:
            return await read(reader, 50)

    records = run(scenario())
    assert [record.value for record in records] == [b"%d" % n for n in range(50)]
    assert [record.offset for record in records] == list(range(50))


@pytest.mark.secured(short=True)
def test_headers_nulls_and_ten_megabytes(broker, new_topic):
    size = 10 * 1024 * 1024
    topic = new_topic(max_message_bytes=str(size + 1024))
    headers = [("a", b"1"), ("a", b"2"), ("b", b"")]

    async def scenario():
        producer = AIOKafkaProducer(**aiokafka(broker), max_request_size=size + 1024)
        async with producer:
            await producer.send_and_wait(topic, None, b"k", headers=headers)
            await producer.send_and_wait(topic, b"y" * size)
        async with consumer(
            broker, topic, max_partition_fetch_bytes=1000
        ) as reader:  # one batch comes, always
            return await read(reader, 2)

    small, large = run(scenario())
    assert (small.key, small.value, list(small.headers)) == (b"k", None, headers)
    assert large.value == b"y" * size


def test_a_record_over_the_limit_is_refused(broker, new_topic):
    topic = new_topic(max_message_bytes="1000")

    async def scenario():
        async with AIOKafkaProducer(**aiokafka(broker)) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 5000)
            return await producer.send_and_wait(topic, b"x")

    assert run(scenario()).offset == 0


def test_seeks_by_offset_and_time(broker, new_topic):
    topic = new_topic()
    start = int(time.time() * 1000) - 100_000
    partition = TopicPartition(topic, 0)

    async def scenario():
        async with AIOKafkaProducer(**aiokafka(broker), linger_ms=5) as producer:
            await asyncio.gather(
                *[await producer.send(topic, b"%d" % n, timestamp_ms=start + n * 100) for n in range(100)]
            )
        async with consumer(broker) as reader:
            reader.assign([partition])
            reader.seek(partition, 77)
            assert (await reader.getone()).value == b"77"
            assert await reader.beginning_offsets([partition]) == {partition: 0}
            assert await reader.end_offsets([partition]) == {partition: 100}
            found = await reader.offsets_for_times({partition: start + 2050})
            assert (found[partition].offset, found[partition].timestamp) == (21, start + 2100)
            await reader.seek_to_end(partition)
            assert await reader.position(partition) == 100

    run(scenario())


@pytest.mark.secured(short=True)
def test_members_share_leave_and_take_up_commits(broker, new_topic):
    topic = new_topic(4)
    group = f"aiokafka-{uuid.uuid4().hex[:8]}"

    async def scenario():
        async with AIOKafkaProducer(**aiokafka(broker)) as producer:
            for n in range(40):
                await producer.send_and_wait(topic, b"%d" % n, partition=n % 4)
        quick = {"group_id": group, "heartbeat_interval_ms": 300, "metadata_max_age_ms": 2000}
        first, second = consumer(broker, topic, **quick), consumer(broker, topic, **quick)
        await asyncio.gather(first.start(), second.start())
        await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        assert not first.assignment() & second.assignment()
        for reader in (first, second):
            await read(reader, 20)
            await reader.commit()
        await second.stop()
        await until(lambda: len(first.assignment()) == 4)
        committed = [await first.committed(TopicPartition(topic, n)) for n in range(4)]
        await first.stop()
        return committed

    assert run(scenario()) == [10] * 4


def test_a_static_member_keeps_its_partitions_over_a_restart(broker, new_topic):
    topic = new_topic(2)
    group = f"aiokafka-{uuid.uuid4().hex[:8]}"

    def member(name):
        return consumer(broker, topic, group_id=group, group_instance_id=name, session_timeout_ms=30000)

    async def scenario():
        one, two = member("one"), member("two")
        await asyncio.gather(one.start(), two.start())
        await until(lambda: len(one.assignment()) == len(two.assignment()) == 1)
        had = two.assignment()
        await two.stop()
        back = member("two")
        await back.start()
        await until(lambda: back.assignment())
        assert back.assignment() == had
        assert len(one.assignment()) == 1
        await asyncio.gather(one.stop(), back.stop())

    run(scenario())


@pytest.mark.secured(short=True)
def test_admin_calls(broker):
    name = f"aiokafka-{uuid.uuid4().hex[:8]}"

    async def scenario():
        admin = AIOKafkaAdminClient(**aiokafka(broker))
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000000"})])
            assert name in await admin.list_topics()
            await admin.create_partitions({name: NewPartitions(3)})
            (described,) = await admin.describe_topics([name])
            assert len(described["partitions"]) == 3
            (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
            values = {row[0]: row[1] for row in response.resources[0][4]}
            assert values["retention.ms"] == "5000000"
            await admin.alter_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "6000000"})]
            )
            async with AIOKafkaProducer(**aiokafka(broker)) as producer:
                for _ in range(10):
                    await producer.send_and_wait(name, b"x", partition=0)
            await admin.delete_records({TopicPartition(name, 0): RecordsToDelete(before_offset=6)})
            async with consumer(broker) as reader:
                begin = await reader.beginning_offsets([TopicPartition(name, 0)])
            assert list(begin.values()) == [6]
            cluster = await admin.describe_cluster()
            assert len(cluster["brokers"]) == 1
            async with consumer(broker, name, group_id=f"{name}-group") as member:
                await read(member, 4)
                await member.commit()
                groups = dict(await admin.list_consumer_groups())
                assert groups[f"{name}-group"] == "consumer"
                (response,) = await admin.describe_consumer_groups([f"{name}-group"])
                assert response.groups[0][2] == "Stable"
            offsets = await admin.list_consumer_group_offsets(f"{name}-group")
            assert offsets[TopicPartition(name, 0)].offset == 10
            await admin.delete_topics([name])
            deadline = time.monotonic() + WAIT_S
            while name in await admin.list_topics():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        finally:
            await admin.close()

    run(scenario())
