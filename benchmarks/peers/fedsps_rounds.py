"""fedsps: its stacked engine; it draws the batches itself. `--fedsps` takes FedSPS in place of FedAvg."""

import torch
from workload import BATCH, CLASSES, FEATURES, LOCAL_STEPS, STEPSIZE, Work, clients

import fedsps

torch.set_num_threads(1)
work = Work()
result = fedsps.train(
    fedsps.LogisticRegression(FEATURES, CLASSES),
    [(torch.from_numpy(inputs), torch.from_numpy(targets)) for inputs, targets in clients(work.samples)],
    algorithm=fedsps.FedSPS() if "--fedsps" in work.rest else fedsps.FedAvg(client_stepsize=STEPSIZE),
    rounds=work.rounds,
    local_steps=LOCAL_STEPS,
    batch_size=BATCH,
    evaluate_every=0,
    engine="stacked",
    callback=lambda row: work.round_ends(),
)
assert result.model is not None
end = result.model.state_dict()
work.finish(end["weight"].T, end["bias"])
