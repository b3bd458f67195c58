"""Messages to the nodes and back: pushed at once, pulled as they come, and weighed before they are read.

Flower keeps a message as a tree of small objects, and a grid pulls all of them before it looks at any. Here the bytes
are counted as they come: an answer that grows beyond what was asked for is left where it is, and one that cannot be
put together is its sender's fault, not an exception of the server.
"""

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
from flwr.app import Array, ConfigRecord, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, inflate_object_from_contents, pull_objects
from flwr.superlink.grid.http_grid import HttpGrid

from fedsps.errors import DataError
from fedsps.flower import wire

SMALL = 2**20  # bytes: names, facts, texts and heads of an answer; all of one that brings no arrays
MANY = 10_000  # objects of one answer
Came = Message | DataError


@dataclass(frozen=True)
class Courier:
    """Flower's way to the nodes.

    Attributes:
        grid: Flower's.
        poll: seconds between two looks for answers. Flower's own call looks every 3 s only.
        beside: records that every message brings.
    """

    grid: Grid
    poll: float
    beside: Mapping[str, ConfigRecord] = field(default_factory=dict)

    def nodes(self) -> set[int]:
        """Those that are connected now."""
        return set(self.grid.get_node_ids())

    def push(self, messages: Sequence[Message]) -> dict[str, int]:
        """Send them; by the id under which an answer will come, the node that it must come from."""
        if not messages:
            return {}
        for message in messages:
            message.content.update(self.beside)
        return dict(zip(self.grid.push_messages(messages), (one.metadata.dst_node_id for one in messages), strict=True))

    def exchange(self, messages: Sequence[Message], seconds: float, most: int) -> dict[int, Came]:
        """Send them, and wait until all have been answered or the time is over; the answers by node.

        Args:
            messages: one a node.
            seconds: how long to wait.
            most: bytes of one answer.
        """
        until = time.monotonic() + seconds
        waiting = self.push(messages)
        answers: dict[int, Came] = {}
        while waiting:
            for name, came in self.pull(waiting, most).items():
                answers[waiting.pop(name)] = came
            if not waiting or time.monotonic() > until:
                break
            time.sleep(self.poll)
        return answers

    def pull(self, waiting: Mapping[str, int], most: int) -> dict[str, Came]:
        """What has come of the answers, by the ids of what they answer; it does not wait.

        Args:
            waiting: as `push` gave it.
            most: bytes of one answer; a larger one is a DataError.
        """
        if not waiting:
            return {}
        if isinstance(self.grid, HttpGrid):
            found = _pull(self.grid, waiting, most)
        else:
            found = {one.metadata.reply_to_message_id: one for one in self.grid.pull_messages(waiting)}
        return {name: self._of(waiting[name], came) for name, came in found.items() if name in waiting}

    def _of(self, node: int, came: Came) -> Came:
        """An answer of the node that was asked; Flower's errors in the place of one are the server's own."""
        if isinstance(came, DataError):
            return came
        if came.has_error():
            return LostError(f"Flower lost it: {wire.plain_text(came.error.reason)}")
        return came if came.metadata.src_node_id == node else DataError("another node answered in its place")


def _pull(grid: HttpGrid, names: Iterable[str], most: int) -> dict[str, Came]:
    """As Flower's grid pulls messages, with an eye on what comes."""
    client, run = grid._runtime_client, grid.run.run_id
    listed = client.PullMessages(PullAppMessagesRequest(message_ids=list(names)))
    fetch = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    found: dict[str, Came] = {}
    for head, tree in zip(listed.messages_list, listed.message_object_trees, strict=True):
        own = head.metadata.message_id
        objects = {one.object_id for one in iterate_object_tree(tree)}
        try:
            found[head.metadata.reply_to_message_id] = assemble(own, objects, fetch, most)
        except DataError as error:
            found[head.metadata.reply_to_message_id] = error
        client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=own))
    return found


def assemble(name: str, objects: Collection[str], fetch: Callable[[str], bytes], most: int) -> Message:
    """A message out of its objects, if they are not too large.

    An array of equal parts names the same object many times, so that its size is known by its list of parts alone.

    Args:
        name: the message's own object.
        objects: all of them.
        fetch: brings the bytes of one.
        most: bytes, as they come and as they are put together.

    Raises:
        DataError: they are more, or do not make a message.
    """
    left, lock = most, threading.Lock()

    def weighed(one: str) -> bytes:
        nonlocal left
        content = fetch(one)
        with lock:
            left -= len(content)
            if left < 0:
                raise TooLargeError
        return content

    try:
        if len(objects) > MANY:
            raise TooLargeError
        contents = pull_objects(list(objects), weighed)
        if sum(_whole(content, contents) for content in contents.values()) > most:
            raise TooLargeError
        message = cast(Message, inflate_object_from_contents(name, contents))
    except TooLargeError as error:
        raise DataError(
            f"its answer is larger than {most} bytes, which is more than was asked for: not read"
        ) from error
    except (ObjectPullError, httpx.HTTPError) as error:
        raise LostError(f"Flower lost it: {wire.plain_text(error)}") from error
    except Exception as error:
        raise DataError(f"its answer cannot be read ({type(error).__name__})") from error
    message.metadata.__dict__["_message_id"] = name
    return message


def _whole(content: bytes, contents: Mapping[str, bytes]) -> int:
    """The bytes of an object, once its parts are put together."""
    if get_object_type_from_object_content(content) != Array.__qualname__:
        return 0
    parts = get_object_children_ids_from_object_content(content)
    described: dict[str, Any] = json.loads(get_object_body(content, Array))
    return sum(len(contents[parts[place]]) for place in described["arraychunk_ids"])


class LostError(DataError):
    """Flower has no answer: the node is gone, or its app's process ended."""


class TooLargeError(Exception):
    """More bytes than were asked for."""
