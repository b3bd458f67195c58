"""Our actions, and beside them what Flower's strategies ask for."""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedsps.flower import client_app
from rounds.task import BATCH, LOCAL_STEPS, STEPSIZE, data, model

app = client_app(model, data)


@app.train()
def train(message: Message, context: Context) -> Message:
    """The same work by hand: 5 steps of gradient descent on batches of 20."""
    torch.set_num_threads(1)
    local = model(context)
    local.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs, targets = data(context).train  # type: ignore[misc]
    optimizer = torch.optim.SGD(local.parameters(), lr=STEPSIZE)
    for _ in range(LOCAL_STEPS):
        rows = torch.randint(len(targets), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(local(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    content = RecordDict()
    content["arrays"] = ArrayRecord(local.state_dict())
    content["metrics"] = MetricRecord({"num-examples": len(targets)})
    return Message(content, reply_to=message)
