"""Many sites, some killed and some late, all by a seed: what the rounds and the weights are in the end.

    python tests/chaos.py [--sites 50] [--rounds 20] [--seed 0] [--deadline 30]

The SuperLink, its gateway, TLS, keys and the ServerApp are real processes. A site is light: a thread that speaks Flower's
fleet API and calls the ClientApp in its own process, five sites to a process. Processes are killed (SIGKILL) while rounds
go on, and started again; other sites answer after the deadline. Three things must hold:

    every round is counted, with its minimum cohort at least
    those that were not counted are named in `events`
    the weights are those of the local engine with the same absences
"""

import argparse
import itertools
import math
import multiprocessing
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode import fleet_http_connection

import fedsps
from fedsps.core import streams
from fedsps.deploy import keys as key_files
from fedsps.deploy.run import run
from fedsps.deploy.up import down, up
from fedsps.flower import RunConfig
from fedsps.runs import pins

APP = Path(__file__).parent / "real" / "faulty_app"
ALGORITHM = "scaffold:client_stepsize=0.05"  # clients keep a state, which an answer that came too late must not spoil
TOGETHER = 5  # sites in a process
ASKS = 2.0  # seconds between a site's looks for messages; Flower's own takes 3
LATE = 0.01  # the share of answers that come after the deadline
PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Outcome:
    """What a run under chaos came to.

    Attributes:
        rounds: that were counted.
        fewest: clients in a round.
        killed: sites whose process was killed.
        late: answers that were held back.
        missing: absences of clients in all rounds.
        unnamed: absences that no event names.
        difference: the largest of a weight, from the local engine with the same absences.
        seconds: the median of a round.
    """

    rounds: int
    fewest: int
    killed: int
    late: int
    missing: int
    unnamed: int
    difference: float
    seconds: float


def app_module(name):
    """A module of the app that the ServerApp's process has installed."""
    sys.path.insert(0, str(APP))
    try:
        return __import__(f"faulty.{name}", fromlist=["app"])
    finally:
        sys.path.remove(str(APP))


def serve(numbers, sites, address, folder):
    """The life of a process of sites; it ends by being killed."""
    torch.set_num_threads(1)
    app = app_module("client_app").app
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 10  # the least: a killed site is let in again after twice that
    fleet_http_connection.flwr_exit = refused  # Flower's own ends the process
    threads = [threading.Thread(target=site, args=(number, sites, address, folder, app)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def refused(code, message):
    raise ConnectionError(message)


def site(number, sites, address, folder, app):
    """The life of a site: connect, and again if that is refused, since Flower still waits for the one that was killed."""
    keys = key_files.Keys(folder / "keys")
    pair = (
        load_ssh_private_key(keys.node(number).read_bytes(), None),
        load_ssh_public_key(keys.public(number).read_bytes()),
    )
    place = {"partition-id": number, "num-partitions": sites, "state-dir": str(folder / "state" / str(number))}
    while True:
        with (
            suppress(ConnectionError),
            fleet_http_connection.http_request_response(
                address, False, keys.ca_certificate.read_bytes(), pair, max_retries=0
            ) as connection,
        ):
            answer(app, place, *connection)
        time.sleep(2)


def answer(app, place, node, receive, send, get_run, get_fab, pull, push, confirm):
    """Take messages and answer them, for ever."""
    configs = {}
    while True:
        if (received := receive()) is None:
            time.sleep(ASKS)
            continue
        message, tree = received
        name = message.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree, partial(pull, name), partial(confirm, name), return_type=Message
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        if name not in configs:
            asked = get_run(name)
            configs[name] = get_fused_config_from_fab(get_fab(asked.fab_hash, name).content, asked)
        reply = app(message, Context(name, node, place, RecordDict(), configs[name]))
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = send(reply, get_object_tree(reply), 0.0)
        for one, content in get_all_nested_objects(reply).items():
            if one in wanted:
                push(name, session, one, content.deflate())


def register(folder, address, sites):
    """The sites' keys, each for its partition."""
    keys = key_files.make(folder / "keys", sites)
    steering = ControlHttpClient.from_server_address(
        address, False, keys.ca_certificate.read_bytes(), [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    )
    for number in range(sites):
        public = public_key_to_bytes(load_ssh_public_key(keys.public(number).read_bytes()))
        node = steering.RegisterNode(RegisterNodeRequest(public_key=public)).node_id
        pins.pin(folder / pins.NAME, node, number)
    steering.close()


class Sites:
    """The processes of sites."""

    def __init__(self, count, address, folder):
        self.count, self.address, self.folder = count, address, folder
        groups = itertools.groupby(range(count), lambda number: number // TOGETHER)
        self.groups = [list(numbers) for _, numbers in groups]
        self.processes = [self.start(numbers) for numbers in self.groups]

    def start(self, numbers):
        process = PROCESSES.Process(target=serve, args=(numbers, self.count, self.address, self.folder), daemon=True)
        process.start()
        return process

    def kill(self, place):
        """One process, and start it again."""
        self.processes[place].kill()
        self.processes[place].join()
        self.processes[place] = self.start(self.groups[place])

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


def chaos(sites, rounds, seed, deadline, folder, show=lambda line: None):
    """Run, with kills and late answers, and compare.

    Args:
        sites: how many.
        rounds: how many.
        seed: of who is killed when, and who is late.
        deadline: seconds that the sites have for an answer.
        folder: of the federation.
        show: called with each line of the run.
    """
    chance = random.Random(seed)
    answers = list(itertools.product(range(sites), range(rounds)))
    late = chance.sample(answers, math.ceil(LATE * len(answers)))
    faults = " ".join(f"{client}/{round}/sleep{deadline + 5:g}" for client, round in late)
    places = range(-(-sites // TOGETHER))
    kills = {round: chance.choice(places) for round in range(2, rounds, 4)}
    state = up(folder, 0)
    (link,) = [process.address for process in state.processes if process.name == "superlink"]
    register(folder, link, sites)
    PROCESSES.set_forkserver_preload(["torch", "fedsps.flower.client", "flwr.supernode.fleet_http_connection"])
    crowd = Sites(sites, state.address, folder)
    killers = []

    def watch(line):
        """Kill in the middle of the round that comes after the line of one."""
        show(line)
        found = re.match(r"round (\d+)/", line)
        if found and int(found[1]) in kills:
            place, moment = kills[int(found[1])], chance.uniform(0, 3)
            killers.append(threading.Timer(moment, crowd.kill, [place]))
            killers[-1].start()

    words = f'algorithm="{ALGORITHM}" rounds={rounds} minimum-cohort={sites // 2} deadline={deadline:.1f} '
    words += f'evaluate-every=0 test.faults="{faults}" runs="{folder / "runs"}"'
    try:
        outcome = run(APP, folder, [words], timeout=800, show=watch)
        assert outcome.status == "completed", outcome.details
    finally:
        for killer in killers:
            killer.join()
        crowd.end()
        down(folder)
    (path,) = [one.parent for one in (folder / "runs").glob("*/summary.json")]
    return compared(path, sites, rounds, sum(len(crowd.groups[place]) for place in kills.values()), len(late))


def absent(events):
    """The clients that a round's events name: of the last attempt, if it was repeated; each names them ascending."""
    clients = [int(client) for client in re.findall(r"client (\d+): (?!its state)", events)]
    starts = [place for place in range(1, len(clients)) if clients[place] <= clients[place - 1]]
    return clients[starts[-1] :] if starts else clients


def compared(path, sites, rounds, killed, late):
    """The run's own record, against the local engine with the absences that it names."""
    task = app_module("task")

    def model():
        with streams.torch_seed(0, "model"):
            return task.model()

    found = fedsps.load(path, model())
    named = {row.round: absent(row.events) for row in found.history.itertuples()}
    counted = found.history.set_index("round")["clients"]
    local = fedsps.train(
        model(),
        [task.samples(client) for client in range(sites)],
        algorithm=RunConfig(algorithm=ALGORITHM).built,
        rounds=rounds,
        batch_size=5,
        evaluate_every=0,
        absences={round: clients for round, clients in named.items() if clients},
    )
    ours, theirs = found.model.state_dict(), local.model.state_dict()
    return Outcome(
        rounds=len(found.history),
        fewest=int(counted.min()),
        killed=killed,
        late=late,
        missing=sites * rounds - int(counted.sum()),
        unnamed=sum(abs(sites - len(clients) - int(counted[round])) for round, clients in named.items()),
        difference=max(float((value - theirs[name]).abs().max()) for name, value in ours.items()),
        seconds=statistics.median(found.history["seconds"]),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=30.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        outcome = chaos(asked.sites, asked.rounds, asked.seed, asked.deadline, Path(place) / "federation", print)
    print(f"{outcome}\n{time.monotonic() - began:.0f} s")
    lost = outcome.rounds < asked.rounds or outcome.fewest < asked.sites // 2
    sys.exit(lost or outcome.unnamed > 0 or outcome.difference > 1e-9)


if __name__ == "__main__":
    main()
