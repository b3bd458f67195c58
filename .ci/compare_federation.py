"""Hold the example's federation of two nodes against the local engine: `compare_federation.py RUNS`."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import fedsps
from fedsps.core import streams

sys.path.insert(0, "examples/flower-digits")
from flower_digits.task import model, server_test, site_data

run = {"digits.partition": "dirichlet"}
contexts = [
    SimpleNamespace(run_config=run, node_config={"partition-id": site, "num-partitions": 2}) for site in range(2)
]
with streams.torch_seed(0, "model"):
    start = model(contexts[0]).double()
(folder,) = [path.parent for path in Path(sys.argv[1]).glob("*/summary.json")]
found = fedsps.load(folder, model(contexts[0]).double())
local = fedsps.train(
    start,
    [site_data(context).train for context in contexts],
    algorithm=found.spec.algorithm,
    rounds=3,
    test=server_test(contexts[0]),
    engine="stacked",
)
ours, theirs = found.model.state_dict(), local.model.state_dict()
furthest = max((value - theirs[name]).abs().max().item() for name, value in ours.items())
same = torch.isclose(torch.tensor(found.history["train_loss"]), torch.tensor(local.history["train_loss"]), rtol=1e-9)
events = found.history["events"].tolist()
print(f"federation and local engine: weights differ by at most {furthest:.2g}; events: {events}")
sys.exit(0 if furthest < 1e-10 and same.all() and not any(events) else 1)
