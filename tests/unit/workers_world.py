"""Several workers, each a forked process with a real reactor; a test asks them, and speaks to them over TCP.

`Workers(n)` makes what the supervisor makes before its fork: mailboxes and the table of rows. A worker serves
its sockets, and in between does what the test asks of it by name (`Workers.ask`)."""

import gc
import itertools
import multiprocessing
import os
import resource
import signal
import socket
import struct
import sys
import time

from kafkad._native.log.partition_watermarks import NEW_LEADER
from reactor_world import NOW_MS, Client, Closed, Gate, SlowLog, World, open_log

from kafkad._native.log.exchange import abandon_exchange, begin_exchange
from kafkad._native.log.partition import Partition
from kafkad._native.shared.mailbox import Mailboxes
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.log.reader import ReaderLog
from tests.readiness import readable


class Worker(World):
    """In the worker's process: what a test may ask for, by name."""

    def __init__(self, directory, rows, mailboxes, **limits):
        super().__init__(directory, mailboxes=mailboxes, **limits)
        self.rows = rows

    def port(self):
        return self.listener.getsockname()[1]

    def own(self, topic, index, topic_id, *, follows_end=True, append=None, segment_bytes=None):
        """A partition of this worker, empty; the number of its row."""
        directory = os.path.join(self.directory, f"{topic}-{index}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"{0:020d}.log"), "wb"):
            pass
        slot = self.rows.allocate()
        partition = Partition(topic, index, topic_id, directory, slot)
        partition.add_segment(0, 0, NOW_MS)
        partition.follows_end = follows_end
        partition.log = SlowLog(append)
        partition.lead(0)
        self.table.add(partition, topic, topic_id)
        return slot.number

    def own_log(self, topic, index, topic_id, **config):
        """The same with a real log above it, which unpacks."""
        slot = self.rows.allocate()
        directory = os.path.join(self.directory, f"{topic}-{index}")
        log = open_log(directory, topic, index, topic_id, row=slot, **config)
        self.table.add(log.native, topic, topic_id)
        return slot.number

    def read(self, topic, index, topic_id, row, owner):
        """A partition of worker `owner`."""
        directory = os.path.join(self.directory, f"{topic}-{index}")
        slot = self.rows.row(row)
        reader = Partition.reader(topic, index, topic_id, directory, slot, owner)
        ReaderLog(reader, directory)
        self.table.add(reader, topic, topic_id)

    def serve_transactions(self, **options):
        """Transactional Produces, with a gate of this worker."""
        self.gate = Gate(**options)
        self.reactor.serve_transactions(self.gate)

    def unverified(self):
        self.reactor.serve_transactions(self.gate, verify=False)

    def refuse(self, refusals):
        self.gate.refusals = refusals

    def asked(self):
        return self.gate.asked

    def let_go(self):
        return self.gate.let_go()

    def end_transaction(self, topic, index, producer_id, epoch, version=0):
        self.table.get(topic, index).append_marker(producer_id, epoch, 0, True, version, NOW_MS)

    def expect_order(self, topic, index):
        self.table.get(topic, index).expect_order()

    def remove(self, topic, index):
        self.table.remove(topic, index)

    def advance(self, topic, index, offset):
        self.table.get(topic, index).advance_high_watermark(offset)

    def replicate(self, topic, index, broker_id, broker_epoch, epoch):
        """This worker's partition is led in `epoch` by broker 1, with one follower in its ISR."""
        native = self.table.get(topic, index)
        native.log.set_leader_epoch(epoch, 1, alone=False)
        rows = [(broker_id, True, True, True, broker_epoch, 0)]
        native.replicate(rows, isr_count=2, isr_count_max=2, reset=NEW_LEADER, now_ms=0, lag_ms_max=1000)

    def know_replicas(self, topic, index, rows):
        self.table.get(topic, index).know_replicas(rows)

    def replica_rows(self, topic, index):
        return self.table.get(topic, index).replica_rows()

    def delete_records(self, topic, index, offset):
        self.table.get(topic, index).log.delete_records(offset)

    def high_watermark(self, topic, index):
        return self.table.get(topic, index).high_watermark

    def advance_and_exchange(self, topic, index, offset):
        """Begin to exchange files for the cleaner's before the other workers can look at the watermark."""
        self.advance(topic, index, offset)
        begin_exchange(self.table.get(topic, index))

    def begin_exchange(self, topic, index):
        begin_exchange(self.table.get(topic, index))

    def end_exchange(self, topic, index):
        abandon_exchange(self.table.get(topic, index))

    def follow_and_lead(self, topic, index, epoch, offset):
        partition = self.table.get(topic, index)
        partition.follow(epoch - 1, 7)
        partition.lead(epoch)
        partition.advance_high_watermark(offset)

    def end_offset(self, topic, index):
        return self.table.get(topic, index).end_offset

    def close_to_clients(self, topic, index):
        self.table.get(topic, index).close_to_clients()

    def hold_unpacking(self, held):
        self.reactor.hold_unpacking(held)

    def peer_lost(self, peer):
        self.reactor.peer_lost(peer)

    def stats(self):
        return self.reactor.stats()

    def fds(self):
        return len(os.listdir("/proc/self/fd"))

    def limit_fds(self, more):
        """It can open so many more files. (What was open before the fork may have left gaps.)"""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = [os.dup(0) for _ in range(more)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, hard))
        for number in free:
            os.close(number)

    def peers(self):
        return self.reactor.connections()

    def allocated_blocks(self):
        gc.collect()
        return sys.getallocatedblocks()

    def told(self):
        return self.lines

    def answer_for(self, *workers, software=None, state=None):
        """Its requests count as answered by these workers in turn; -1: by this one."""
        turns = itertools.cycle(workers)

        def answer(connection, request_id, frame):
            if software is not None:
                connection.client_software_name, connection.client_software_version = software, "1.2"
            connection.state = state
            worker = next(turns)
            connection.answered_here() if worker < 0 else connection.answered_by(worker)
            connection.respond(request_id, frame[4:8], b"!")

        self.answer = answer

    def answer_later(self):
        """Keep requests for `answer_all`."""
        self.kept = []
        self.answer = lambda *request: self.kept.append(request)

    def answer_all(self, worker):
        for connection, request_id, frame in self.kept:
            connection.answered_by(worker)
            connection.respond(request_id, frame[4:8], b"!")
        self.kept.clear()

    def names(self):
        """The software of the client of the last call, and its address."""
        connection = self.calls[-1][0]
        return (
            connection.client_software_name,
            connection.client_software_version,
            connection.peer_host,
            connection.peer_port,
        )

    def calls_seen(self):
        return [frame for _, _, frame in self.calls]


class Workers:
    def __init__(self, count, directory, *, handover=None, hosts=None, **limits):
        self.directory = str(directory)
        self.limits = limits
        self.mailboxes = Mailboxes(count)
        self.handover = handover  # with it connections are spread, whichever worker's port they come by
        self.hosts = hosts
        self.rows = WatermarkTable(1 << 12, shared=True)
        self.pids = [0] * count
        self.lines = [None] * count
        self.clients = []
        for worker in range(count):
            self.start(worker)

    # -- processes

    def start(self, me):
        ours, theirs = multiprocessing.Pipe()
        self.lines[me] = ours
        self.pids[me] = os.fork()
        if self.pids[me] == 0:
            gc.freeze()  # garbage of the parent, librdkafka's clients among it, is not ours to collect
            code = 1
            try:
                work(me, theirs, self)
                code = 0
            finally:
                os._exit(code)
        theirs.close()
        self.ask(me, "port")

    def ask(self, worker, name, *arguments, **options):
        line = self.lines[worker]
        line.send((name, arguments, options))
        assert line.poll(30), f"worker {worker} does not answer"
        result = line.recv()
        if isinstance(result, Exception):
            raise result
        return result

    def ask_until(self, worker, name, *arguments, want, seconds=20):
        """Its answer, once `want(answer)` holds."""
        deadline = time.monotonic() + seconds
        while not want(answer := self.ask(worker, name, *arguments)):
            assert time.monotonic() < deadline, f"worker {worker}: {name} is still {answer}"
        return answer

    def stop(self, worker):
        """It does nothing more until `go`."""
        os.kill(self.pids[worker], signal.SIGSTOP)
        os.waitid(os.P_PID, self.pids[worker], os.WSTOPPED)

    def go(self, worker):
        os.kill(self.pids[worker], signal.SIGCONT)

    def kill(self, worker):
        os.kill(self.pids[worker], signal.SIGKILL)
        self.bury(worker)

    def bury(self, worker):
        _, status = os.waitpid(self.pids[worker], 0)
        self.pids[worker] = 0
        self.lines[worker].close()
        return os.waitstatus_to_exitcode(status)

    def close(self):
        for client in self.clients:
            client.socket.close()
        for worker, pid in enumerate(self.pids):
            if pid:
                self.go(worker)
                self.lines[worker].close()
        codes = [self.bury(worker) for worker, pid in enumerate(self.pids) if pid]
        assert codes == [0] * len(codes)

    # -- partitions

    def partition(self, topic, index, owner, *, topic_id=None, known=True, own="own", **options):
        """Owned by `owner`, and known to all others."""
        topic_id = topic_id or topic.encode().ljust(16, b"\1")[:16]
        row = self.ask(owner, own, topic, index, topic_id, **options)
        for worker, pid in enumerate(self.pids):
            if pid and worker != owner and known:
                self.ask(worker, "read", topic, index, topic_id, row, owner)
        return row

    def log(self, topic, index):
        """The bytes of its first segment."""
        with open(os.path.join(self.directory, f"{topic}-{index}", f"{0:020d}.log"), "rb") as file:
            return file.read()

    # -- clients

    def connect(self, worker):
        client = WorkersClient(("127.0.0.1", self.ask(worker, "port")))
        self.clients.append(client)
        return client


class WorkersClient(Client):
    """A client of a broker in other processes: it blocks."""

    def __init__(self, address):
        self.socket = socket.create_connection(address)
        self.socket.settimeout(30)
        self.correlation = itertools.count(1)
        self.received = bytearray()

    def send(self, data):
        self.socket.sendall(data)

    def pull(self):
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionResetError:
            raise Closed from None
        if not data:
            raise Closed
        self.received += data

    def receive_frame(self, seconds=30):
        while True:
            if len(self.received) >= 4:
                (size,) = struct.unpack_from(">i", self.received)
                if len(self.received) >= 4 + size:
                    frame = bytes(self.received[4 : 4 + size])
                    del self.received[: 4 + size]
                    return frame
            self.pull()

    def has_answer(self, seconds=0):
        return bool(self.received) or bool(readable([self.socket], seconds))

    def wait_closed(self, seconds=30):
        try:
            while True:
                self.pull()
        except Closed:
            return


def work(me, line, workers):
    """The life of a worker, until the test closes the line."""
    for other in workers.lines:
        if other is not None:
            other.close()
    workers.mailboxes.enter(me)
    shared = {"handover": workers.handover, "hosts": workers.hosts}
    for each in shared.values():
        if each is not None:
            each.enter(me)
    worker = Worker(workers.directory, workers.rows, workers.mailboxes, **shared, **workers.limits)
    worker.poll()
    while True:
        ready = readable([line, worker.reactor.fileno()])
        worker.reactor.poll()
        if line not in ready:
            continue
        try:
            name, arguments, options = line.recv()
        except EOFError:
            break
        try:
            answer = getattr(worker, name)(*arguments, **options)
        except Exception as error:
            answer = error
        line.send(answer)
    worker.close()
