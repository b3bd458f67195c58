"""One run of SecAgg+ as the server sees it: every reply is checked before Flower's workflow takes it.

The workflow trusts what comes: a short vector, a share of a stranger or a text in the place of bytes would be an
exception of the server. Here they are refused by the sender's name, and the workflow sees a client that dropped out.

What can be checked is the form, and that the shares of a secret agree with each other. The masked numbers themselves
say nothing; the sum of a constant that rides along says whether they were whole (`SecureTransport`).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.common import FitIns, FitRes, bytes_to_ndarray, parameters_to_ndarrays
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.compat.common import recorddict_compat as legacy
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from torch import Tensor

from fedsps.errors import DataError
from fedsps.flower import wire
from fedsps.flower.check import MOST_GRADIENTS
from fedsps.flower.client import LeavesRoundError
from fedsps.flower.courier import SMALL, Courier
from fedsps.flower.policy import Policy

MOST_BYTES = 4096  # of a key, a share or a ciphertext
SEED = 32  # bytes of a mask's seed
MOD_RANGE = 2**32  # masked numbers are below it
FOREIGN = "no good shares from"
"""How a client says whose shares it cannot read; node ids follow."""

Mod = Callable[[Message, Context], Message]


def checked_shares(message: Message, context: Context, call_next: Mod) -> Message:
    """A mod before Flower's: shares that cannot be read are reported with their sender's name.

    Raises:
        PolicyError: the site's policy asks for more clients in a sum.
        LeavesRoundError: some cannot; the server hears which nodes they came from.
    """
    configs: Mapping[str, Any] = message.content.config_records.get(RECORD_KEY_CONFIGS, {})
    if configs.get(Key.STAGE) == Stage.SETUP:
        Policy.of(context.node_config).check_sum(int(configs[Key.SAMPLE_NUMBER]))
    if configs.get(Key.STAGE) == Stage.COLLECT_MASKED_VECTORS:
        state: Mapping[str, Any] = context.state.config_records[RECORD_KEY_STATE]
        secrets = dict(zip(state["ss2_dict:K"], state["ss2_dict:V"], strict=True))
        bad = []
        for source, ciphertext in zip(configs[Key.SOURCE_LIST], configs[Key.CIPHERTEXT_LIST], strict=True):
            try:
                decrypt(secrets[source], ciphertext)
            except Exception:
                bad.append(source)
        if bad:
            raise LeavesRoundError(f"{FOREIGN} {', '.join(map(str, bad))}")
    return call_next(message, context)


@dataclass
class Asked:
    """What Flower's workflow takes for grid, strategy and clients: one round's requests, and room for the mean.

    Attributes:
        courier: the way to the nodes.
        requests: by node.
        length: of a client's vector.
        seconds: that the nodes have for each stage.
        stage: how many are over.
        silent: nodes that did not share their keys; Flower's unmasking needs those of all.
        reasons: why nodes are not in the sum, or were refused, as far as it is known.
        vectors: nodes whose masked vector is in.
        nodes: those in the mean; none if the protocol broke off.
        mean: of their vectors.
        gradients: what they cost.
    """

    courier: Courier
    requests: dict[int, FitIns]
    length: int
    seconds: float
    stage: int = 0
    silent: set[int] = field(default_factory=set)
    reasons: dict[int, str] = field(default_factory=dict)
    vectors: set[int] = field(default_factory=set)
    nodes: list[int] = field(default_factory=list)
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    gradients: int = 0
    threshold: int = 0

    def left(self, reason: str) -> list[int]:
        """The nodes that left the round for this reason."""
        return [node for node, given in self.reasons.items() if given == reason]

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        """One stage of the protocol; if the keys of one are missing after the first two, it ends.

        Flower's workflow goes on with those that are left and fails at the unmasking; an empty answer ends it at once.

        Args:
            messages: those of this stage, one a node.
            timeout: of the workflow, which is `seconds`.
        """
        sent = {message.metadata.dst_node_id: message for message in messages}
        came = self.courier.exchange(list(sent.values()), self.seconds, SMALL + 16 * self.length)
        replies: dict[int, Message] = {}
        accused: dict[int, int] = {}
        for node, reply in sorted(came.items()):
            try:
                if isinstance(reply, DataError):
                    raise reply
                CHECKS[self.stage](_configs(reply.content), _configs(sent[node].content), node)
                if self.stage == VECTORS:
                    _check_vector(reply.content, self.length)
                replies[node] = reply
            except DataError as error:
                for other in _accused(str(error)):
                    accused[other] = accused.get(other, 0) + 1
                self.reasons[node] = _reason(str(error))
            except Exception as error:
                self.reasons[node] = f"what it sent cannot be read ({type(error).__name__})"
        if self.stage == 0:
            self.threshold = int(next(iter(_configs(one.content)[Key.THRESHOLD] for one in sent.values())))
            self._refuse(replies, _same_keys(replies), "its keys are another's as well")
        elif self.stage == VECTORS:
            self.vectors = set(replies)
            for node, times in accused.items():
                if node in sent and 2 * times > len(sent) - 1:
                    self.reasons[node] = "the others cannot read its shares"
                    self.silent.add(node)
        elif self.stage == UNMASK:
            self._unmask(replies)
        if self.stage < VECTORS:
            self.silent = sent.keys() - replies.keys()
        self.stage += 1
        return [] if self.silent else list(replies.values())

    def _unmask(self, replies: dict[int, Message]) -> None:
        """Leave out whoever's shares do not agree with the others'; if that is the secret's owner, end."""
        shares: dict[int, dict[int, bytes]] = {}
        for node, reply in replies.items():
            told = _configs(reply.content)
            for owner, share in zip(told[Key.NODE_ID_LIST], told[Key.SHARE_LIST], strict=True):
                shares.setdefault(owner, {})[node] = share
        senders, owners = disagreeing(shares, self.threshold)
        self._refuse(replies, senders, "its shares do not agree with the others'")
        for owner in owners:
            self.reasons[owner] = "the shares that it gave to the others do not agree"
            self.silent.add(owner)

    def _refuse(self, replies: dict[int, Message], nodes: Iterable[int], why: str) -> None:
        """Take replies out again."""
        for node in nodes:
            del replies[node]
            self.reasons[node] = why

    def num_available(self) -> int:
        """How many clients there are to ask; Flower's workflow wants to know."""
        return len(self.requests)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, FitIns]]:
        """The requests by node, in the place of a strategy's choice of clients."""
        return [(SimpleNamespace(node_id=node), ins) for node, ins in self.requests.items()]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[Any, FitRes]], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        """Keep the mean, which every result holds after the unmasking, and the sum of the costs."""
        self.nodes = [proxy.node_id for proxy, _ in results]
        self.mean = torch.from_numpy(parameters_to_ndarrays(results[0][1].parameters)[0])
        self.gradients = sum(int(res.metrics.get("gradients", 0)) for _, res in results)
        return None, {}


def disagreeing(shares: Mapping[int, Mapping[int, bytes]], threshold: int) -> tuple[set[int], set[int]]:
    r"""Who gave wrong shares: at the unmasking (a sender), or when they were dealt (the owner of the secret).

    Any `threshold` shares of a secret give the same secret, if all are right. If those of an owner do not, and do
    without one sender alone, it is the sender's; if they do without no sender, it is the owner's. If several could be
    the one, nothing is said here: the sum tells that something is wrong.

    Args:
        shares: by the owner of the secret, by the sender of the share.
        threshold: shares that give a secret.

    >>> from flwr.common.secure_aggregation.crypto.shamir import create_shares
    >>> shares = {owner: dict(enumerate(create_shares(bytes(32), 2, 4))) for owner in range(4)}
    >>> shares[0][3] = b"\4\0\0\0" + bytes(48)
    >>> disagreeing(shares, threshold=2)
    ({3}, set())
    """

    def agree(given: Mapping[int, bytes]) -> bool:
        every = [given[sender] for sender in sorted(given)]
        last = len(every) - threshold
        secrets = {_secret(every[start : start + threshold]) for start in {*range(0, max(last, 0), threshold), last}}
        return last >= 0 and len(secrets) == 1 and None not in secrets

    senders: set[int] = set()
    owners: set[int] = set()
    for owner, given in shares.items():
        if not agree(given):
            alone = [one for one in given if agree({other: given[other] for other in given if other != one})]
            senders |= set(alone if len(alone) == 1 else ())
            owners |= set() if alone else {owner}
    return senders, owners


def _secret(shares: list[bytes]) -> bytes | None:
    """The secret of some shares: the seed of a mask, or a private key; None if they give neither."""
    try:
        secret = combine_shares(shares)
    except Exception:
        return None
    return secret if len(secret) == SEED or secret.startswith(b"-----BEGIN") else None


def _configs(content: RecordDict) -> Mapping[str, Any]:
    """What the protocol has put into a message."""
    return content.config_records[RECORD_KEY_CONFIGS]


def _check_keys(told: Mapping[str, Any], asked: Mapping[str, Any], node: int) -> None:
    """Two different public keys."""
    keys = [told[Key.PUBLIC_KEY_1], told[Key.PUBLIC_KEY_2]]
    for key in keys:
        bytes_to_public_key(_short(key))
    if keys[0] == keys[1]:
        raise DataError("its two keys are the same")


def _check_shares(told: Mapping[str, Any], asked: Mapping[str, Any], node: int) -> None:
    """A ciphertext for each of its neighbours, and for nobody else."""
    destinations, ciphertexts = told[Key.DESTINATION_LIST], told[Key.CIPHERTEXT_LIST]
    neighbours = {int(name) for name in asked if name != Key.STAGE} - {node}
    if sorted(destinations) != sorted(neighbours) or len(ciphertexts) != len(destinations):
        raise DataError("its shares are not for its neighbours")
    for ciphertext in ciphertexts:
        _short(ciphertext)


def _check_masked(told: Mapping[str, Any], asked: Mapping[str, Any], node: int) -> None:
    """Two arrays, the weight and the vector; their sizes are `_check_vector`'s."""
    if not isinstance(told[Key.MASKED_PARAMETERS], list) or len(told[Key.MASKED_PARAMETERS]) != 2:
        raise DataError("not a weight and a vector")


def _check_unmasking(told: Mapping[str, Any], asked: Mapping[str, Any], node: int) -> None:
    """A share of each client that was asked for, and of nobody else."""
    owners, shares = told[Key.NODE_ID_LIST], told[Key.SHARE_LIST]
    wanted = [*asked[Key.ACTIVE_NODE_ID_LIST], *asked[Key.DEAD_NODE_ID_LIST]]
    if sorted(owners) != sorted(wanted) or len(shares) != len(owners):
        raise DataError("its shares are not those that were asked for")
    for share in shares:
        if len(_short(share)) < 20 or len(share) % 16 != 4:
            raise DataError("a share is of the wrong length")


CHECKS = (_check_keys, _check_shares, _check_masked, _check_unmasking)
VECTORS, UNMASK = 2, 3  # the stages in which masked vectors and shares come; those before are for keys


def _check_vector(content: RecordDict, length: int) -> None:
    """Masked whole numbers, as many as were asked for; a weight of one; and what it cost."""
    sizes = (1, length)
    for name, size, data in zip(("weight", "vector"), sizes, _configs(content)[Key.MASKED_PARAMETERS], strict=True):
        if len(data) > 8 * size + MOST_BYTES:
            raise DataError(f"its {name} has {len(data)} bytes, {size} numbers were asked for")
        values = bytes_to_ndarray(data)
        if values.dtype.kind not in "iu" or values.shape != (size,):
            raise DataError(f"its {name} is {values.dtype} of shape {values.shape}, not {size} whole numbers")
        if values.min() < 0 or values.max() >= MOD_RANGE:
            raise DataError(f"its {name} has numbers that no mask gives")
    result = legacy.recorddict_to_fitres(content, keep_input=True)
    gradients = result.metrics.get("gradients", 0)
    if not isinstance(gradients, int) or not 0 <= gradients <= MOST_GRADIENTS:
        raise DataError("it does not say how many gradients it took")


def _short(data: bytes) -> bytes:
    """Bytes, and not too many."""
    if not isinstance(data, bytes) or len(data) > MOST_BYTES:
        raise DataError("a key or a share is no such thing")
    return data


def _same_keys(replies: Mapping[int, Message]) -> list[int]:
    """Nodes whose keys another node has sent too."""
    keys = {
        node: {_configs(reply.content)[Key.PUBLIC_KEY_1], _configs(reply.content)[Key.PUBLIC_KEY_2]}
        for node, reply in replies.items()
    }
    return [node for node in keys if any(keys[node] & keys[other] for other in keys if other != node)]


def _accused(text: str) -> list[int]:
    """The nodes that a client names as senders of bad shares."""
    found = re.search(rf"{FOREIGN} ([\d, ]+)", text)
    return [int(number) for number in found[1].split(", ") if number] if found else []


def _reason(text: str) -> str:
    """What a client said when it left, if it is one of the sentences that it may say; else what Flower says."""
    known = next((words for words in (*LEAVING, FOREIGN) if words in text), None)
    return wire.plain_text(text if known is None else f"{known} another" if known == FOREIGN else known)


INFINITE = "its change or its loss is not finite"
BELOW = "a loss fell below its lower bound"
LEAVING = (INFINITE, BELOW)
"""The two reasons for leaving a round that the server is told."""
