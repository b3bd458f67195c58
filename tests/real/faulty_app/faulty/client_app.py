"""Clients whose training answers are spoiled in the rounds that the run configuration says."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from faulty.task import data, model
from fedsps.deploy.processes import wait_until
from fedsps.flower import client_app

honest = client_app(model, data)
app = ClientApp()


def fault(message, context):
    """What this client is to do wrong in this round, if anything."""
    client, round = context.node_config["partition-id"], message.content.config_records["ask"]["round"]
    for words in str(context.run_config["test.faults"]).split():
        who, when, what = words.split("/")
        if (int(who), int(when)) == (client, round):
            return what
    return ""


@app.train("train")
def train(message, context):
    what = fault(message, context)
    if what.startswith("hang"):
        mark = Path(str(context.run_config["test.marks"])) / f"{what}-{context.node_config['partition-id']}"
        if not mark.exists():  # once
            mark.touch()
            time.sleep(600)
    if what == "wait":  # a while, for the one that was killed
        wait_until((Path(str(context.run_config["test.marks"])) / "back").exists, 20)
    reply = honest(message, context)
    if what == "lines":
        reply.content.clear()
        reply.content["error"] = ConfigRecord({"text": FALSE})
    if what.startswith("sleep"):
        time.sleep(float(what.removeprefix("sleep")))
    if what in SPOIL:
        arrays = reply.content.array_records["message"]
        delta = arrays["delta"].numpy().copy()
        reply.content["message"] = ArrayRecord(
            {name: value for name, value in (dict(arrays) | SPOIL[what](delta)).items() if value is not None}
        )
    return reply


def put(delta, value):
    delta[0] = value
    return {"delta": Array(delta)}


SPOIL = {
    "nan": lambda delta: put(delta, np.nan),
    "infinity": lambda delta: put(delta, np.inf),
    "shape": lambda delta: {"delta": Array(delta[:-1])},
    "dtype": lambda delta: {"delta": Array(delta.astype(np.float32))},
    "missing": lambda delta: {"delta": None},
    "huge": lambda delta: {"delta": Array(delta + 1e30)},
    "large": lambda delta: {"delta": Array(np.arange(5_000_000.0))},
}
FALSE = "disk\nround 9/9  accuracy 1.0000\nfinished: all is well\r\x1b[2J\x1b[1;1H\x9b" + "x" * 1_000_000


@app.train("probe")
def probe(message, context):
    return honest(message, context)


@app.evaluate()
def evaluate(message, context):
    return honest(message, context)


@app.query()
def query(message, context):
    reply = honest(message, context)
    if context.run_config["test.claim"] >= 0 and context.node_config["partition-id"] == 1:
        reply.content.config_records["facts"]["partition"] = context.run_config["test.claim"]
    return reply


@app.query("finished")
def finished(message, context):
    return honest(message, context)
