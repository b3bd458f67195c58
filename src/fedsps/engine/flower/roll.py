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


@dataclass
class Roll:
    """Partitions by node. Node ids are random; partitions are what a seed can draw cohorts from."""

    grid: Grid
    settings: Settings
    nodes: dict[int, int] = field(default_factory=dict)  # partition -> node
    sizes: dict[int, int] = field(default_factory=dict)  # partition -> samples
    partitions: int = 0

    def refresh(self) -> None:
        """Forget the nodes that are gone, and ask the new ones who they are."""
        there = set(self.grid.get_node_ids())
        self.nodes = {partition: node for partition, node in self.nodes.items() if node in there}
        new = sorted(there - set(self.nodes.values()))
        deadline = min(30.0, self.settings.deadline)
        answers = self._ask(dict.fromkeys(new, RecordDict()), "query", deadline)
        for node, content in sorted(answers.items()):
            facts = wire.told(content, "facts")
            if not facts:
                raise ConfigurationError(f"node {node} cannot take part: {wire.told(content, 'error').get('text')}")
            partition, partitions = int(facts["partition"]), int(facts["partitions"])
            if partition in self.nodes:
                raise ConfigurationError(
                    f"nodes {self.nodes[partition]} and {node} both have partition-id {partition}: "
                    "give each SuperNode its own in --node-config"
                )
            if self.partitions not in (0, partitions):
                raise ConfigurationError(
                    f"node {node} has num-partitions {partitions}, others have {self.partitions}: "
                    "give all SuperNodes the same in --node-config"
                )
            self.partitions = partitions
            self.nodes[partition], self.sizes[partition] = node, int(facts["samples"])

    def wait(self, seconds: float) -> list[int]:
        """Wait until all partitions are there; those that are missing after so many seconds."""
        until = time.monotonic() + seconds
        while True:
            self.refresh()
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
        """The answers by partition, in ascending order; a DataError says why there is none."""
        known = {self.nodes[one]: content for one, content in requests.items() if one in self.nodes}
        found = self._ask(known, kind, self.settings.deadline)
        answers: dict[int, RecordDict | DataError] = {}
        for partition in sorted(requests):
            node = self.nodes.get(partition)
            if node is None:
                answers[partition] = DataError("not connected")
            else:
                late = DataError(f"no answer within {self.settings.deadline:g} s")
                answers[partition] = found.get(node, late)
        return answers

    def _ask(self, requests: Mapping[int, RecordDict], kind: str, deadline: float) -> dict[int, RecordDict]:
        """Push, and pull until all have answered or the time is over. Flower's own call looks every 3 s only."""
        if not requests:
            return {}
        until = time.monotonic() + deadline
        messages = [Message(content, node, kind, ttl=deadline) for node, content in requests.items()]
        waiting = set(self.grid.push_messages(messages))
        answers: dict[int, RecordDict] = {}
        while waiting:
            for reply in list(self.grid.pull_messages(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                content = wire.error(f"Flower: {reply.error.reason}") if reply.has_error() else reply.content
                answers[reply.metadata.src_node_id] = content
            if not waiting or time.monotonic() > until:
                break
            time.sleep(self.settings.poll)
        return answers
