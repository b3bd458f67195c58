"""Who is there: which node serves which partition, and how they are asked."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsps.engine.flower import wire
from fedsps.engine.flower.settings import Settings
from fedsps.errors import ConfigurationError, DataError
from fedsps.streams import Rows

PATIENCE = 60.0  # seconds after which a node that has not said who it is is asked again


@dataclass
class Roll:
    """Partitions by node. Node ids are random; partitions are what a seed can draw cohorts from."""

    grid: Grid
    settings: Settings
    nodes: dict[int, int] = field(default_factory=dict)  # partition -> node
    sizes: dict[int, int] = field(default_factory=dict)  # partition -> samples
    partitions: int = 0
    _asked: dict[str, tuple[int, float]] = field(default_factory=dict)  # query -> node, when

    def refresh(self) -> list[str]:
        """Forget the nodes that are gone, ask the new ones who they are, and hear what was answered since.

        It does not wait. What it returns are complaints: nodes that cannot take part, and why.
        """
        there = set(self.grid.get_node_ids())
        self.nodes = {partition: node for partition, node in self.nodes.items() if node in there}
        now = time.monotonic()
        self._asked = {query: (node, when) for query, (node, when) in self._asked.items() if now - when < PATIENCE}
        new = there - set(self.nodes.values()) - {node for node, _ in self._asked.values()}
        messages = [Message(RecordDict(), node, "query", ttl=PATIENCE) for node in sorted(new)]
        for query, message in zip(self.grid.push_messages(messages) if messages else (), messages, strict=True):
            self._asked[query] = (message.metadata.dst_node_id, now)
        complaints = []
        replies = list(self.grid.pull_messages(list(self._asked))) if self._asked else []
        for reply in sorted(replies, key=lambda one: one.metadata.src_node_id):
            if reply.has_error():  # it was lost on the way: the node is asked again
                self._asked.pop(reply.metadata.reply_to_message_id, None)
                continue
            complaint = self._introduce(reply.metadata.src_node_id, reply.content)
            if complaint is None:
                self._asked.pop(reply.metadata.reply_to_message_id, None)
            else:  # it is asked again when its query has expired
                complaints.append(complaint)
        return complaints

    def _introduce(self, node: int, content: RecordDict) -> str | None:
        facts = wire.told(content, "facts")
        try:
            partition, partitions, size = (int(facts[key]) for key in ("partition", "partitions", "samples"))
        except (KeyError, TypeError, ValueError, OverflowError):
            return (
                f"node {node} cannot take part: {wire.told(content, 'error').get('text', 'it does not say who it is')}"
            )
        if self.partitions not in (0, partitions) or not 0 <= partition < partitions or size < 1:
            return (
                f"node {node} says it is partition {partition} of {partitions}, others have {self.partitions}: "
                "give all SuperNodes the same num-partitions in --node-config"
            )
        if partition in self.nodes:
            return (
                f"nodes {self.nodes[partition]} and {node} both have partition-id {partition}: "
                "give each SuperNode its own in --node-config"
            )
        self.partitions = partitions
        self.nodes[partition], self.sizes[partition] = node, size
        return None

    def wait(self, seconds: float) -> list[int]:
        """Wait until all partitions are there; those that are missing after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            complaints = self.refresh()
            if complaints:
                raise ConfigurationError(complaints[0])
            missing = [partition for partition in range(self.partitions) if partition not in self.nodes]
            if (self.partitions and not missing) or time.monotonic() > until:
                return missing
            time.sleep(self.settings.poll)

    def known_sizes(self) -> Rows:
        """The samples of each partition; all must have been seen."""
        missing = self.wait(self.settings.start_deadline)
        if missing or not self.partitions:
            who = f"partitions {', '.join(map(str, missing))}" if missing else "any SuperNode"
            raise ConfigurationError(
                f"no sign of {who} within {self.settings.start_deadline:g} s: start the SuperNodes, or raise "
                "start-deadline"
            )
        return np.array([self.sizes[partition] for partition in range(self.partitions)], dtype=np.int64)

    def ask(self, requests: Mapping[int, RecordDict], kind: str) -> dict[int, RecordDict | DataError]:
        """The answers by partition, in ascending order; a DataError says why there is none.

        A node that does not answer is not waited for again until it has said that it is back.
        """
        known = {self.nodes[one]: content for one, content in requests.items() if one in self.nodes}
        found = self._ask(known, kind)
        answers: dict[int, RecordDict | DataError] = {}
        for partition in sorted(requests):
            node = self.nodes.get(partition)
            if node is None:
                answers[partition] = DataError("not connected")
            elif node in found:
                answers[partition] = found[node]
            else:
                answers[partition] = DataError(f"no answer within {self.settings.deadline:g} s")
                del self.nodes[partition]
        return answers

    def _ask(self, requests: Mapping[int, RecordDict], kind: str) -> dict[int, RecordDict | DataError]:
        """Push, and pull until all have answered or the time is over. Flower's own call looks every 3 s only."""
        if not requests:
            return {}
        deadline = self.settings.deadline
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
            time.sleep(self.settings.poll)
        return answers
