"""A client that says who it is, and in its log how it was started."""

import sys

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    print(f"started as {sys.argv[0]}", flush=True)
    named = ConfigRecord({"partition": context.node_config["partition-id"], "state": context.node_config["state-dir"]})
    return Message(RecordDict({"named": named}), reply_to=message)
