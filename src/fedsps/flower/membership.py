"""Who is there: which node serves which partition, and how they are asked.

Nodes come and go, and their ids are random. A node says by itself which partition it serves (its key must be registered
for that one, where the server has it in writing); the first to say so has it until it is gone or silent. A cohort is
drawn from partitions, so it is the same whichever nodes serve them.
"""

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict

from fedsps.core.streams import Indices
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import versions, wire
from fedsps.flower.config import RunConfig
from fedsps.flower.courier import SMALL, Courier, LostError
from fedsps.runs.pins import pinned

PATIENCE = 60.0  # seconds after which a node that has not said who it is, or was refused, is asked again
FAREWELL = 30.0  # seconds that nodes have to delete the state of a finished run
MOST_PARTITIONS = 100_000
MOST_SAMPLES = 10**12  # of one client; the sum over all partitions fits into 64 bits


@dataclass
class Membership:
    """Partitions by node. Node ids are random; partitions are what a seed can draw cohorts from.

    What a node says of itself is checked against limits before it is believed. A node that cannot take part is asked
    again after `PATIENCE` seconds: its data may be in place by then.

    Attributes:
        courier: the way to the nodes.
        config: the run configuration.
        nodes: partition -> the node that serves it.
        last: partition -> the node that served it last, be it silent or gone.
        sizes: partition -> its number of samples.
        held: partition -> samples of its own test data.
        partitions: how many there are; 0 until it is known.
        app: the digest of the server's app, if it is known.
        pins: node -> the partition that its key was registered for; None believes the nodes.
        notes: what is to be told of nodes that do take part.
        query: the type of the message by which nodes are asked who they are.
        told: partition -> the sums of its table, where that was asked for.
    """

    courier: Courier
    config: RunConfig
    nodes: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    partitions: int = 0
    app: str = ""
    pins: Mapping[int, int] | None = field(default_factory=pinned)
    notes: list[str] = field(default_factory=list)
    query: str = "query"
    told: dict[int, str] = field(default_factory=dict)
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # query -> node, when
    _refused: dict[int, tuple[str, float]] = field(default_factory=dict)  # node -> why, when

    def __post_init__(self) -> None:
        self.partitions = self.config.clients

    def refresh(self) -> list[str]:
        """Forget the nodes that are gone, ask the new ones who they are, and hear what was answered since.

        It does not wait. What it returns are new complaints: nodes that cannot take part, and why.
        """
        there = self.courier.nodes()
        self.nodes = {partition: node for partition, node in self.nodes.items() if node in there}
        now = time.monotonic()
        self._asked = {
            query: (node, when)
            for query, (node, when) in self._asked.items()
            if node in there and now - when < PATIENCE
        }
        self._refused = {
            node: (why, when) for node, (why, when) in self._refused.items() if node in there and now - when < PATIENCE
        }
        new = there - set(self.nodes.values()) - {node for node, _ in self._asked.values()} - self._refused.keys()
        messages = [Message(RecordDict(), node, self.query, ttl=PATIENCE) for node in sorted(new)]
        self._asked |= {query: (node, now) for query, node in self.courier.push(messages).items()}
        complaints, noted = [], len(self.notes)
        came = self.courier.pull({query: node for query, (node, _) in self._asked.items()}, SMALL)
        for node, reply in sorted((self._asked.pop(query)[0], reply) for query, reply in came.items()):
            if isinstance(reply, LostError):  # on the way: the node is asked again
                continue
            complaint = (
                f"node {node} cannot take part: {reply}"
                if isinstance(reply, DataError)
                else self._introduce(node, reply.content)
            )
            if complaint is not None:
                self._refused[node] = (complaint, now)
                complaints.append(complaint)
        return complaints + self.notes[noted:]

    def _introduce(self, node: int, content: RecordDict) -> str | None:
        """Take a node in by what it says of itself, or return the complaint."""
        facts = wire.values(content, "facts")
        try:
            partition, partitions, size, held = (
                operator.index(facts[key]) for key in ("partition", "partitions", "samples", "test_samples")
            )
            theirs = {key: wire.plain_text(facts[key]) for key in versions.own("")}
        except (KeyError, TypeError):
            why = wire.values(content, "error").get("text", "it does not say who it is")
            return f"node {node} cannot take part: {wire.plain_text(why)}"
        if not 0 <= partition < partitions <= MOST_PARTITIONS:
            return (
                f"node {node} says it is partition {partition:.6g} of {partitions:.6g}: they count from 0, "
                f"and {MOST_PARTITIONS} are the most"
            )
        if not (1 <= size <= MOST_SAMPLES and 0 <= held <= MOST_SAMPLES):
            return f"node {node} says it has {size:.6g} samples and {held:.6g} to test on: that cannot be"
        if self.partitions not in (0, partitions):
            return (
                f"node {node} says it is partition {partition} of {partitions}, but this run has {self.partitions}: "
                "give all SuperNodes the same num-partitions in --node-config, or the right one to the setting clients"
            )
        if self.pins is not None and self.pins.get(node) != partition:
            told = f"is registered for partition {self.pins[node]}" if node in self.pins else "is registered for none"
            return f"node {node} says it is partition {partition}, but its key {told}: refused"
        refused, noted = versions.mismatch(versions.own(self.app), theirs)
        if refused is not None:
            return f"node {node} cannot take part: {refused}"
        if partition in self.nodes:
            return (
                f"nodes {self.nodes[partition]} and {node} both have partition-id {partition}: "
                "give each SuperNode its own in --node-config"
            )
        self.partitions = partitions
        if noted is not None and self.last.get(partition) != node:
            self.notes.append(f"client {partition}: {noted}")
        self.nodes[partition] = self.last[partition] = node
        self.sizes[partition], self.held[partition] = size, held
        self.told[partition] = str(facts.get("sums", ""))
        return None

    @property
    def missing(self) -> list[int]:
        """Partitions that no node serves now, ascending."""
        return [partition for partition in range(self.partitions) if partition not in self.nodes]

    @property
    def complaints(self) -> list[str]:
        """What keeps nodes that are there from taking part, one sentence for each of them."""
        return [why for why, _ in self._refused.values()] + self.notes

    def wait(self, seconds: float, enough: Callable[[], bool]) -> list[str]:
        """Look who is there until it is enough, so many seconds at most; complaints on the way.

        Args:
            seconds: 0 looks once.
            enough: asked after each look; looks are `poll` seconds apart.
        """
        until = time.monotonic() + seconds
        complaints = self.refresh()
        while not enough() and time.monotonic() < until:
            time.sleep(self.config.poll)
            complaints += self.refresh()
        return complaints

    def count(self) -> int:
        """How many clients there are: as the run configuration says, else as the first node does.

        Raises:
            ConfigurationError: no node said so within `start_deadline` seconds; the first complaint, if there is any.
        """
        self.wait(self.config.start_deadline, lambda: self.partitions > 0 or (bool(self._refused) and not self._asked))
        if not self.partitions:
            raise self._absent("any SuperNode")
        return self.partitions

    def known_sizes(self) -> Indices:
        """The samples of each partition, `[partitions]`; all must have been seen.

        If the nodes alone say how many there are, all that are connected must have been heard, and must agree.

        Raises:
            ConfigurationError: some did not come within `start_deadline` seconds, or nodes disagree.
        """
        configured = self.config.clients > 0
        self.wait(
            self.config.start_deadline,
            lambda: (not self.missing and (configured or not self._asked)) or (not configured and bool(self._refused)),
        )
        missing = self.missing
        if missing or (self._refused and not configured):
            more = f" and {len(missing) - 10} more" if len(missing) > 10 else ""
            raise self._absent(f"partitions {', '.join(map(str, missing[:10]))}{more}")
        return np.array([self.sizes[partition] for partition in range(self.partitions)], dtype=np.int64)

    def _absent(self, who: str) -> ConfigurationError:
        """The error for those who did not come: a complaint says more than their absence."""
        slow = len({node for node, _ in self._asked.values()})
        there = f" ({slow} nodes are connected and slow: they have not said yet who they are)" if slow else ""
        return ConfigurationError(
            next(
                (why for why, _ in self._refused.values()),
                f"no sign of {who} within {self.config.start_deadline:g} s{there}: start the SuperNodes, or raise "
                "start-deadline",
            )
        )

    def ask(
        self, requests: Mapping[int, tuple[str, RecordDict]], most: int = SMALL, tasks: int = 1
    ) -> dict[int, RecordDict | DataError]:
        """The answers by partition, in ascending order; a DataError says why there is none.

        A node that does not answer is not waited for again until it has said that it is back.

        Args:
            requests: what each partition is sent: the type of the message, "train.train", "train.probe" or "evaluate",
                and its records.
            most: bytes of one answer; a larger one is not read.
            tasks: that a message may hold; there is a deadline's time for each.
        """
        deadline = tasks * self.config.deadline
        messages = [
            Message(content, self.nodes[client], kind, ttl=deadline + PATIENCE)
            for client, (kind, content) in requests.items()
            if client in self.nodes
        ]
        came = self.courier.exchange(messages, deadline, most)
        answers: dict[int, RecordDict | DataError] = {}
        for partition in sorted(requests):
            node = self.nodes.get(partition)
            reply = None if node is None else came.get(node)
            if reply is None or isinstance(reply, LostError):
                answers[partition] = reply or self.silence(partition, deadline)
                self.nodes.pop(partition, None)
            else:
                answers[partition] = reply if isinstance(reply, DataError) else reply.content
        return answers

    def farewell(self, content: RecordDict) -> list[int]:
        """Tell all nodes that the run is finished; the partitions that did not confirm it in time."""
        messages = [Message(content, node, "query.finished", ttl=PATIENCE) for node in self.nodes.values()]
        came = self.courier.exchange(messages, min(FAREWELL, self.config.deadline), SMALL)
        kept = [client for client, node in self.nodes.items() if isinstance(came.get(node), DataError | None)]
        return sorted({*kept, *self.missing})

    def silence(self, partition: int, seconds: float) -> DataError:
        """Why there is no answer of a partition within so many seconds: its node is slow, or it is not there."""
        node = self.nodes.get(partition)
        there = self.last.get(partition) in self.courier.nodes()
        if node is not None:
            state = "it is connected, but slow" if there else "it is gone"
            return DataError(f"no answer within {seconds:g} s: {state}")
        return DataError("slow: it is connected, but has not said yet that it is back" if there else "not connected")
