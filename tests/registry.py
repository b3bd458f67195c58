"""Every algorithm of the catalogue, in every option that changes its recursion. The common tests run over this list."""

import fedsps

ALGORITHMS = {
    "fedavg": fedsps.FedAvg(client_stepsize=0.05),
    "fedavg, server stepsize": fedsps.FedAvg(client_stepsize=0.05, server_stepsize=0.7),
    "fedsps": fedsps.FedSPS(),
    "fedsps, lower by client": fedsps.FedSPS(lower=(-0.1, 0.0, -0.2, 0.0, -0.3)),
    "fedsps, paper smoothing": fedsps.FedSPS(smoothing="paper", cap=0.1),
    "fedsps, loizou smoothing": fedsps.FedSPS(smoothing="loizou", cap=0.1),
    "feddecsps": fedsps.FedDecSPS(),
    "feddecsps, own clock": fedsps.FedDecSPS(clock="client"),
    "feddecsps, reset": fedsps.FedDecSPS(reset=True),
    "normalized": fedsps.FedSPSNormalized(),
    "global a": fedsps.FedSPSGlobal(formula="a"),
    "global b": fedsps.FedSPSGlobal(formula="b", smoothing="paper", cap=0.1),
    "global c": fedsps.FedSPSGlobal(formula="c", cap=0.2),
    "global, given start": fedsps.FedSPSGlobal(initial=0.1),
}
