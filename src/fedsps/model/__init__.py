"""From `nn.Module` to functions of one flat vector: the only place that knows modules.

What lives here turns a module and a loss into `loss_and_gradient(x [..., d], ...)`, and builds the paper's models. It
imports `fedsps.core` alone.
"""
