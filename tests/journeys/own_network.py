"""Your own network on three sites: early stopping, the best model, a table by client, a model for each site."""

import torch
from torch import nn

import fedsps

torch.manual_seed(0)


def site(samples: int, shift: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Made-up samples; what separates the classes differs a little from site to site."""
    inputs = torch.randn(samples, 10)
    return inputs, (inputs[:, 0] + shift * inputs[:, 1] + 0.3 * torch.randn(samples) > 0).long()


shifts = {"north": -1.0, "south": 0.5, "east": 1.0}
sites = {name: site(120, shift) for name, shift in shifts.items()}
held_out = {name: site(200, shift) for name, shift in shifts.items()}

network = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
result = fedsps.train(
    network,
    sites,
    test=held_out,
    validation=0.2,  # a fifth of each site's samples
    metrics=["auc"],
    patience=10,  # end ten rounds after the best validation loss
    restore_best=True,  # and keep the model of that round
    rounds=100,
    callback=fedsps.TensorBoard("logs"),
)
print(f"ended by {result.summary['ended']} after {result.summary['rounds']} rounds")
print(
    result.clients[["client", "samples", "loss", "accuracy", "test_accuracy", "test_auc"]]
    .round(3)
    .to_string(index=False)
)

own = fedsps.personalise(result, sites, test=held_out, steps=30)
print(own.table.filter(regex="client|accuracy").round(3).to_string(index=False))
print(result.predict(sites["north"][0][:3]).round(3).to_string(index=False))
