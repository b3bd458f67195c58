"""A client that says who it is."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    named = ConfigRecord({"partition": context.node_config["partition-id"], "state": context.node_config["state-dir"]})
    return Message(RecordDict({"named": named}), reply_to=message)
