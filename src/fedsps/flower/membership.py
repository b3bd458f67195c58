"""Who is there: which node serves which partition, and how they are asked.

Nodes come and go, and their ids are random. A node says by itself which partition it serves; the first to say so has it
until it is gone or silent. A cohort is drawn from partitions, so it is the same whichever nodes serve them.
"""

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsps.core.streams import Indices
from fedsps.errors import ConfigurationError, DataError
from fedsps.flower import wire
from fedsps.flower.config import RunConfig

PATIENCE = 60.0  # seconds after which a node that has not said who it is, or was refused, is asked again
MOST_PARTITIONS = 100_000
MOST_SAMPLES = 10**12  # of one client; the sum over all partitions fits into 64 bits


@dataclass
class Membership:
    """Partitions by node. Node ids are random; partitions are what a seed can draw cohorts from.

    What a node says of itself is checked against limits before it is believed. A node that cannot take part is asked
    again after `PATIENCE` seconds: its data may be in place by then.

    Attributes:
        grid: Flower's way to the nodes.
        config: the run configuration.
        nodes: partition -> the node that serves it.
        sizes: partition -> its number of samples.
        held: partition -> samples of its own test data.
        partitions: how many there are; 0 until it is known.
    """

    grid: Grid
    config: RunConfig
    nodes: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    partitions: int = 0
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # query -> node, when
    _refused: dict[int, tuple[str, float]] = field(default_factory=dict)  # node -> why, when

    def __post_init__(self) -> None:
        self.partitions = self.config.clients

    def refresh(self) -> list[str]:
        """Forget the nodes that are gone, ask the new ones who they are, and hear what was answered since.

        It does not wait. What it returns are new complaints: nodes that cannot take part, and why.
        """
        there = set(self.grid.get_node_ids())
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
        messages = [Message(RecordDict(), node, "query", ttl=PATIENCE) for node in sorted(new)]
        for query, message in zip(self.grid.push_messages(messages) if messages else (), messages, strict=True):
            self._asked[query] = (message.metadata.dst_node_id, now)
        complaints = []
        replies = list(self.grid.pull_messages(list(self._asked))) if self._asked else []
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            self._asked.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error():  # it was lost on the way: the node is asked again
                continue
            node = reply.metadata.src_node_id
            complaint = self._introduce(node, reply.content)
            if complaint is not None:
                self._refused[node] = (complaint, now)
                complaints.append(complaint)
        return complaints

    def _introduce(self, node: int, content: RecordDict) -> str | None:
        """Take a node in by what it says of itself, or return the complaint."""
        facts = wire.values(content, "facts")
        try:
            partition, partitions, size, held = (
                operator.index(facts[key]) for key in ("partition", "partitions", "samples", "test_samples")
            )
        except (KeyError, TypeError):
            why = str(wire.values(content, "error").get("text", "it does not say who it is"))
            return f"node {node} cannot take part: {why[:500]}"
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
        if partition in self.nodes:
            return (
                f"nodes {self.nodes[partition]} and {node} both have partition-id {partition}: "
                "give each SuperNode its own in --node-config"
            )
        self.partitions = partitions
        self.nodes[partition], self.sizes[partition], self.held[partition] = node, size, held
        return None

    @property
    def missing(self) -> list[int]:
        """Partitions that no node serves now, ascending."""
        return [partition for partition in range(self.partitions) if partition not in self.nodes]

    @property
    def complaints(self) -> list[str]:
        """What keeps nodes that are there from taking part, one sentence for each of them."""
        return [why for why, _ in self._refused.values()]

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
        return ConfigurationError(
            next(
                iter(self.complaints),
                f"no sign of {who} within {self.config.start_deadline:g} s: start the SuperNodes, or raise "
                "start-deadline",
            )
        )

    def ask(self, requests: Mapping[int, RecordDict], kind: str) -> dict[int, RecordDict | DataError]:
        """The answers by partition, in ascending order; a DataError says why there is none.

        A node that does not answer is not waited for again until it has said that it is back.

        Args:
            requests: what each partition is sent.
            kind: the type of the message, "train.train", "train.probe" or "evaluate".
        """
        by_node = {self.nodes[client]: content for client, content in requests.items() if client in self.nodes}
        replies = self._ask(by_node, kind)
        answers: dict[int, RecordDict | DataError] = {}
        for partition in sorted(requests):
            node = self.nodes.get(partition)
            if node is None:
                answers[partition] = DataError("not connected")
            elif node in replies:
                answers[partition] = replies[node]
            else:
                answers[partition] = DataError(f"no answer within {self.config.deadline:g} s")
                del self.nodes[partition]
        return answers

    def _ask(self, requests: Mapping[int, RecordDict], kind: str) -> dict[int, RecordDict | DataError]:
        """Push, and pull until all have answered or the time is over. Flower's own call looks every 3 s only."""
        if not requests:
            return {}
        deadline = self.config.deadline
        until = time.monotonic() + deadline
        messages = [Message(content, node, kind, ttl=deadline + PATIENCE) for node, content in requests.items()]
        waiting = set(self.grid.push_messages(messages))
        answers: dict[int, RecordDict | DataError] = {}
        while waiting:
            for reply in list(self.grid.pull_messages(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                answers[reply.metadata.src_node_id] = (
                    DataError(f"Flower lost it: {reply.error.reason}") if reply.has_error() else reply.content
                )
            if not waiting or time.monotonic() > until:
                break
            time.sleep(self.config.poll)
        return answers
