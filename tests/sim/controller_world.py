"""Controllers and brokers above a simulated quorum. Every node has a QuorumController;
brokers are actors that register, send heartbeats and propose ISRs.

    images     equal at equal offsets, on all nodes; and equal to the head of the controller that wrote them
    answers    a topic whose creation was answered is in every later image
    states     tests/image_checks, for every partition of every committed image
    brokers    no block of producer ids is given twice; an epoch is given to one incarnation"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkad.config.broker import BrokerConfig
from kafkad.controller.quorum_controller import QuorumController
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import Delta
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.quorum_log import QuorumLog
from tests.image_checks import check_state, check_step
from tests.registrations import registration
from tests.sim.raft_world import CLUSTER, Quorum

SESSION_MS = 3_000
BEAT_MS = 500
PARTS = [part for part in MetadataImage.PARTS if part not in ("unknown", "topics_by_id")]


@dataclass
class Broker:
    """One broker as the quorum sees it; what it replicates is left to chance."""

    broker_id: int
    incarnation: int = 0
    epoch: int = -1
    alive: bool = True
    leaving: bool = False
    previous: int = -1  # epoch of a clean stop


@dataclass
class Told:
    """What clients were told: it has to stay."""

    topics: dict[str, int] = field(default_factory=dict)  # name -> offset at which it was committed
    deleted: set[str] = field(default_factory=set)  # also where nobody knows
    blocks: set[int] = field(default_factory=set)
    epochs: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch -> broker, incarnation


class Controllers(Quorum):
    def __init__(self, seed: int, voters: int = 3, brokers: int = 3) -> None:
        self.config = BrokerConfig(
            {"broker.session.timeout.ms": str(SESSION_MS), "broker.heartbeat.interval.ms": "1000"}
        )
        self.controllers: dict[int, QuorumController] = {}
        self.images: dict[int, MetadataImage] = {}  # committed, by offset
        self.heads: dict[tuple[int, int], MetadataImage] = {}  # by epoch and offset
        self.told_to_clients = Told()
        self.counted = 0
        self.answered = 0
        super().__init__(seed, voters)
        self.brokers = {each: Broker(each) for each in range(1, brokers + 1)}
        for broker in self.brokers.values():
            self._live(broker)
        self._clock()

    # -- nodes ---------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        if node_id in self.nodes:
            return
        super().start(node_id)
        node = self.nodes[node_id]
        log = QuorumLog(node, self.clock)
        self.controllers[node_id] = QuorumController(log, self.clock, self.chance, self.config, CLUSTER)
        previous: list[MetadataImage] = [node.image]

        def committed(image: MetadataImage, delta: Delta) -> None:
            self._compare(node_id, image, previous[0])
            previous[0] = image

        node.on_commit = committed
        node.on_snapshot = lambda image: previous.__setitem__(0, image)

    def crash(self, node_id: int, *, power: bool = True) -> None:
        super().crash(node_id, power=power)
        self.controllers.pop(node_id, None)

    def _looked(self, node_id: int) -> None:
        super()._looked(node_id)
        controller = self.controllers.get(node_id)
        if controller is not None:
            controller._raft.look()
            if controller.is_active:
                head = controller.head
                self.heads[head.epoch, head.offset] = head

    def _compare(self, node_id: int, image: MetadataImage, before: MetadataImage) -> None:
        known = self.images.setdefault(image.offset, image)
        head = self.heads.get((image.epoch, image.offset))
        for other, whose in ((known, "another node"), (head, "its controller")):
            if other is None or other is image:
                continue
            for part in PARTS:
                ours, theirs = getattr(image, part), getattr(other, part)
                assert ours == theirs, f"{part} at {image.offset} of node {node_id} is not as of {whose}"
        if known is not image:
            return
        for name, offset in self.told_to_clients.topics.items():
            if offset <= image.offset and name not in self.told_to_clients.deleted:
                assert name in image.topics, f"{name} was answered, and is not in the image at {image.offset}"
        for topic in image.topics.values():
            old = before.topics_by_id.get(topic.topic_id)
            for index, state in topic.partitions.items():
                earlier = old.partitions.get(index) if old is not None else None
                if earlier is not state:
                    check_state(image, f"{topic.name}-{index}", state)
                    if earlier is not None and before.offset + 1 == image.offset:
                        check_step(f"{topic.name}-{index}", earlier, state)

    # -- requests ------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[QuorumController], Any], answered: Callable[[Any], Any]) -> None:
        """To a node by chance, mostly the active one; `answered(response, or the KafkaError)` is called when
        it is committed, unless the node dies."""
        up = list(self.controllers)
        active = [each for each in up if self.controllers[each].is_active]
        if not up:
            return
        node_id = self.chance.choice(active if active and self.chance.random() < 0.95 else up)
        controller, life = self.controllers[node_id], self.lives[node_id]

        def arrive() -> None:
            if self.controllers.get(node_id) is not controller:
                return
            try:
                steps = controller.in_term(make(controller))
                while True:
                    next(steps)
            except StopIteration as end:
                response = end.value
                offset = controller.head.offset
            except KafkaError as trouble:
                answered(trouble)
                return
            finally:
                self._poll_at(node_id, 0)
            self.heads[controller.head.epoch, offset] = controller.head

            def committed(trouble: KafkaError | None) -> None:
                if self.lives[node_id] == life:
                    self.after(self._delay(), lambda: answered(response if trouble is None else trouble))

            controller.await_committed(offset, committed)

        self.after(self._delay(), arrive)

    # -- brokers -------------------------------------------------------------------------------------------

    def _live(self, broker: Broker) -> None:
        """Its next heartbeat, and the one after; a new incarnation registers first."""
        life = broker.incarnation

        def again() -> None:
            if broker.alive and broker.incarnation == life:
                self._live(broker)

        self.after(BEAT_MS, again)
        if broker.epoch < 0:
            self._register(broker)
        else:
            self._beat(broker)

    def _register(self, broker: Broker) -> None:
        incarnation = broker.broker_id * 20 + broker.incarnation % 20
        request = registration(broker.broker_id, incarnation, previous_broker_epoch=broker.previous)
        request.cluster_id = CLUSTER
        life = broker.incarnation

        def answered(response: Any) -> None:
            if isinstance(response, KafkaError) or broker.incarnation != life:
                return
            who = (broker.broker_id, life)
            assert self.told_to_clients.epochs.setdefault(response.broker_epoch, who) == who
            broker.epoch = response.broker_epoch

        self.ask(lambda controller: controller.broker_registration(request, 4), answered)

    def _beat(self, broker: Broker) -> None:
        life = broker.incarnation
        offset = max((node.image.offset for node in self.nodes.values()), default=-1)
        request = messages.BrokerHeartbeatRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            current_metadata_offset=offset - self.chance.choice((0, 0, 1, 5)),
            want_shut_down=broker.leaving,
        )

        def answered(response: Any) -> None:
            if broker.incarnation != life:
                return
            if isinstance(response, KafkaError):
                if response.code == errors.STALE_BROKER_EPOCH and self.chance.random() < 0.2:
                    broker.epoch = -1
            elif response.should_shut_down and broker.leaving:
                broker.alive, broker.previous = False, broker.epoch

        def make(controller: QuorumController) -> Any:
            controller.heard_of(request)
            return controller.broker_heartbeat(request)

        self.ask(make, answered)

    def kill_broker(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        broker.alive, broker.previous = False, -1
        if self.chance.random() < 0.7:
            self.after(self.chance.randint(20, 200), lambda: self.refuses(broker_id))

    def refuses(self, broker_id: int) -> None:
        """Active controllers believe that this incarnation has died (server/early_fencing). It may be wrong:
        one that lives goes on."""
        broker = self.brokers[broker_id]
        key, life = (broker_id, broker.epoch), broker.incarnation

        def is_dead() -> bool:
            return broker.incarnation == life

        for node_id, controller in list(self.controllers.items()):
            if controller.is_active:
                self._at(node_id, controller, controller.fence_dead(key, is_dead))

    def start_broker(self, broker_id: int) -> None:
        broker = self.brokers[broker_id]
        if not broker.alive:
            broker.alive, broker.leaving, broker.epoch = True, False, -1
            broker.incarnation += 1
            self._live(broker)

    def propose(self) -> None:
        """A leader, by some node's image, proposes an ISR."""
        image = self._some_image()
        led = [
            (topic, index, state)
            for topic in (image.topics.values() if image is not None else ())
            for index, state in topic.partitions.items()
            if state.leader in self.brokers and self.brokers[state.leader].epoch >= 0
        ]
        if not led or image is None:
            return
        topic, index, state = self.chance.choice(led)
        isr = [each for each in state.replicas if each == state.leader or self.chance.random() < 0.8]
        cls = messages.AlterPartitionRequest
        row = cls.Topics.Partitions
        epochs = {each: image.brokers[each].epoch for each in isr if each in image.brokers}
        request = cls(
            broker_id=state.leader,
            broker_epoch=self.brokers[state.leader].epoch,
            topics=[
                cls.Topics(
                    topic_id=topic.topic_id,
                    partitions=[
                        row(
                            partition_index=index,
                            leader_epoch=state.leader_epoch,
                            partition_epoch=state.partition_epoch,
                            new_isr_with_epochs=[
                                row.NewIsrWithEpochs(broker_id=each, broker_epoch=epochs.get(each, -1))
                                for each in isr
                            ],
                        )
                    ],
                )
            ],
        )
        self.ask(lambda controller: controller.alter_partition(request, 3), lambda response: None)

    def _some_image(self) -> MetadataImage | None:
        nodes = list(self.nodes.values())
        return self.chance.choice(nodes).image if nodes else None

    # -- clients -------------------------------------------------------------------------------------------

    def create_topic(self) -> None:
        self.counted += 1
        name = f"t{self.counted}"
        cls = messages.CreateTopicsRequest
        configs = [cls.Topics.Configs(name="min.insync.replicas", value=str(self.chance.randint(1, 2)))]
        topic = cls.Topics(
            name=name,
            num_partitions=self.chance.randint(1, 3),
            replication_factor=self.chance.randint(1, 3),
            configs=configs,
        )

        def answered(response: Any) -> None:
            if not isinstance(response, KafkaError) and not response.topics[0].error_code:
                self.answered += 1
                self.told_to_clients.topics[name] = max(self.images, default=-1)

        self.ask(lambda controller: controller.create_topics(cls(topics=[topic])), answered)

    def delete_topic(self) -> None:
        names = sorted(set(self.told_to_clients.topics) - self.told_to_clients.deleted)
        if names:
            name = self.chance.choice(names)
            self.told_to_clients.deleted.add(name)
            request = messages.DeleteTopicsRequest(topic_names=[name])
            self.ask(lambda controller: controller.delete_topics(request), lambda response: None)

    def take_ids(self) -> None:
        broker = self.chance.choice(list(self.brokers.values()))
        request = messages.AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)

        def answered(response: Any) -> None:
            if not isinstance(response, KafkaError):
                assert response.producer_id_start not in self.told_to_clients.blocks, "ids are given twice"
                self.told_to_clients.blocks.add(response.producer_id_start)

        self.ask(lambda controller: controller.give_producer_ids(request), answered)

    # -- the controllers' clock ----------------------------------------------------------------------------

    def _clock(self) -> None:
        self.after(SESSION_MS // 8, self._clock)
        for node_id, controller in list(self.controllers.items()):
            if controller.is_active:
                for work in (controller.fence_stale, controller.balance, controller.elect_uncleanly):
                    self._at(node_id, controller, work())

    def _at(self, node_id: int, controller: QuorumController, steps: Any) -> None:
        try:
            for _ in controller.in_term(steps):
                pass
        except KafkaError as trouble:
            assert trouble.code == errors.NOT_CONTROLLER
        else:
            self.heads[controller.head.epoch, controller.head.offset] = controller.head
        self._poll_at(node_id, 0)

    # -- end -----------------------------------------------------------------------------------------------

    def settle(self, ms: int = 20_000) -> None:
        """All is mended: there is one controller, all brokers are unfenced, every partition that can be led
        is, and all nodes know it."""
        self.heal()
        for each in self.all:
            self.start(each)
        for broker in self.brokers:
            if self.brokers[broker].leaving:  # there is no way back from a controlled shutdown
                self.kill_broker(broker)
            self.start_broker(broker)
        self.run(ms)
        (leader,) = self.leaders
        controller = self.controllers[leader]
        assert controller.is_active
        image = controller.image
        unfenced = {each.broker_id for each in image.brokers.values() if each.active}
        assert unfenced >= set(self.brokers), f"only {unfenced} are up"
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                if set(state.isr) | set(state.elr):
                    assert state.leader >= 0, f"{topic.name}-{index} has no leader: {state}"
        for name in self.told_to_clients.topics.keys() - self.told_to_clients.deleted:
            assert name in image.topics, f"{name} was answered, and is gone"
        for node_id, node in self.nodes.items():
            assert node.image.offset > image.offset - 50, f"node {node_id} lags"
