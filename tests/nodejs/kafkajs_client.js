// What a service in Node.js does with a broker, by kafkajs: topics, groups, transactions. Prints what it saw as JSON.
// Its argument is JSON: brokers, topic, group, and for a secured listener ssl (ca as a path) and sasl.
const fs = require("fs");
const { Kafka, logLevel, CompressionTypes } = require("kafkajs");

const given = JSON.parse(process.argv[2]);
const kafka = new Kafka({
  clientId: "node", brokers: given.brokers, logLevel: logLevel.ERROR, sasl: given.sasl,
  ssl: given.ca ? { ca: [fs.readFileSync(given.ca)] } : undefined,
});
const numbers = (first, count) =>
  Array.from({ length: count }, (_, n) => ({
    key: `k${first + n}`, value: String(first + n), partition: (first + n) % 2, headers: { from: "node" },
  }));

async function read(groupId, count, options = {}) {
  const consumer = kafka.consumer({ groupId, ...options });
  const got = [];
  await consumer.connect();
  await consumer.subscribe({ topic: given.topic, fromBeginning: true });
  await new Promise((done, failed) => {
    consumer.on(consumer.events.CRASH, (event) => failed(event.payload.error));
    consumer
      .run({
        eachMessage: async ({ partition, message }) => {
          got.push([partition, message.key.toString(), message.value.toString(), message.headers.from?.toString()]);
          if (got.length === count) done();
        },
      })
      .catch(failed);
  });
  await consumer.stop();
  await consumer.disconnect();
  return got.sort((a, b) => Number(a[2]) - Number(b[2]));
}

async function main() {
  const told = {};
  const admin = kafka.admin();
  await admin.connect();
  told.created = await admin.createTopics({ topics: [{ topic: given.topic, numPartitions: 2 }], waitForLeaders: true });
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  await producer.send({ topic: given.topic, messages: numbers(0, 20) });
  await producer.send({ topic: given.topic, messages: numbers(20, 20), compression: CompressionTypes.GZIP });
  await producer.disconnect();

  const writer = kafka.producer({ transactionalId: `${given.group}-writer`, maxInFlightRequests: 1, idempotent: true });
  await writer.connect();
  for (const [first, commit] of [[40, true], [50, false], [60, true]]) {
    const transaction = await writer.transaction();
    await transaction.send({ topic: given.topic, messages: numbers(first, 10) });
    if (first === 60) {
      await transaction.sendOffsets({
        consumerGroupId: `${given.group}-copied`,
        topics: [{ topic: given.topic, partitions: [{ partition: 0, offset: "7" }] }],
      });
    }
    await (commit ? transaction.commit() : transaction.abort());
  }
  await writer.disconnect();

  told.read = await read(given.group, 60);
  const committed = await admin.fetchOffsets({ groupId: given.group, topics: [given.topic] });
  told.committed = committed[0].partitions.map((each) => [each.partition, Number(each.offset)]).sort();
  const copied = await admin.fetchOffsets({ groupId: `${given.group}-copied`, topics: [given.topic] });
  told.copied = copied[0].partitions.filter((each) => each.offset !== "-1").map((each) => Number(each.offset));
  told.ends = (await admin.fetchTopicOffsets(given.topic)).map((each) => [each.partition, Number(each.high)]).sort();
  const described = await admin.describeGroups([given.group]);
  told.group = [described.groups[0].state, described.groups[0].errorCode];
  await admin.deleteGroups([given.group]);
  await admin.deleteTopics({ topics: [given.topic] });
  told.left = (await admin.listTopics()).includes(given.topic);
  await admin.disconnect();
  return told;
}

main().then(
  (told) => console.log(JSON.stringify(told)),
  (error) => {
    const cause = error.errors ? error.errors[0] : error; // of a KafkaJSAggregateError
    console.log(JSON.stringify({ failed: cause.type || cause.name, message: cause.message }));
    process.exit(1); // connections are still open
  },
);
