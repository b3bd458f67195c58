"""From `nn.Module` to functions of one flat vector: the only place that knows modules.

What lives here turns a module and a loss into `loss_and_gradient(x [..., d], ...)`, and builds the paper's models. It
imports `fedsps.core` alone.

| file | concept |
| --- | --- |
| `device` | a device found by its name, and modules moved there |
| `models` | logistic regression, LeNet, ResNet-18 |
| `chain` | linear layers and activations for all clients at once, without vmap |
| `network` | any module and loss as functions of one flat vector, by autograd |
| `losses` | losses by name |
| `logistic` | the same for logistic regression, in closed form |
"""
