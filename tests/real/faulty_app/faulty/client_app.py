"""Clients whose training answers are spoiled in the rounds that the run configuration says."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
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
}


@app.train("probe")
def probe(message, context):
    return honest(message, context)


@app.evaluate()
def evaluate(message, context):
    return honest(message, context)


@app.query()
def query(message, context):
    return honest(message, context)
