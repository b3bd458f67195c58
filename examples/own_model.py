"""Your own model and your own sites' data, from Python.

python examples/own_model.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedsps

torch.set_num_threads(1)
inputs, targets = load_digits(return_X_y=True)
inputs, targets = torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(targets)
test, rest = slice(0, 300), slice(300, None)

# Six sites of unequal size, each with its own mix of digits.
order = targets[rest].argsort(stable=True) + 300
sites = [(inputs[rows], targets[rows]) for rows in order.split([100, 400, 150, 350, 200, 297])]

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
result = fedsps.train(
    model, sites, algorithm=fedsps.FedSPS(), rounds=100, weights="samples", test=(inputs[test], targets[test])
)
print(
    result.history[["round", "train_loss", "test_accuracy", "stepsize_mean"]]
    .iloc[[0, 9, 49, 99]]
    .to_string(index=False)
)
result.save("runs/own-model")
