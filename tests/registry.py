"""Every algorithm of the catalogue, in every option that changes its recursion. The common tests run over this list."""

import fedsps
from fedsps import Algorithm
from fedsps.rules import (
    NGN,
    SPS,
    AdaSPS,
    AMSGrad,
    CommonStepsize,
    Constant,
    DiagonalExtrapolation,
    Extrapolation,
    PlateauStepsize,
    PolynomialAverage,
    Proximal,
    ScaledSign,
    TopK,
)

BEGUN_ANEW = Algorithm(  # its first round is too bold for small batches: see test_sweep
    stepsize=PlateauStepsize(bold=1.0, holds=0.1), server=DiagonalExtrapolation(), output=PolynomialAverage()
)
ALGORITHMS = {
    "fedavg": fedsps.FedAvg(client_stepsize=0.05),
    "fedavg, server stepsize": fedsps.FedAvg(client_stepsize=0.05, server_stepsize=0.7),
    "fedsps": fedsps.FedSPS(),
    "fedsps, lower by client": fedsps.FedSPS(lower=(-0.1, 0.0, -0.2, 0.0, -0.3)),
    "fedsps, paper smoothing": fedsps.FedSPS(smoothing="paper", cap=0.1),
    "fedsps, loizou smoothing": fedsps.FedSPS(smoothing="loizou", cap=0.1),
    "fedsps, loizou smoothing, reset": fedsps.FedSPS(smoothing="loizou", cap=0.1, reset=True),
    "feddecsps": fedsps.FedDecSPS(),
    "feddecsps, own clock": fedsps.FedDecSPS(clock="client"),
    "feddecsps, reset": fedsps.FedDecSPS(reset=True),
    "normalized": fedsps.FedSPSNormalized(),
    "global a": fedsps.FedSPSGlobal(formula="a"),
    "global b": fedsps.FedSPSGlobal(formula="b", smoothing="paper", cap=0.1),
    "global c": fedsps.FedSPSGlobal(formula="c", cap=0.2),
    "global, given start": fedsps.FedSPSGlobal(initial=0.1),
    "fedavgm": fedsps.FedAvgM(client_stepsize=0.05),
    "fedadagrad": fedsps.FedAdagrad(client_stepsize=0.05),
    "fedadam": fedsps.FedAdam(client_stepsize=0.05),
    "fedyogi": fedsps.FedYogi(client_stepsize=0.05),
    "fedams": fedsps.FedAMS(client_stepsize=0.05, server_stepsize=0.1),
    "fedams, option 2": fedsps.FedAMS(client_stepsize=0.05, server_stepsize=0.1, option=2),
    "fedams, bias corrected": fedsps.FedAMS(client_stepsize=0.05, server_stepsize=0.1, bias_correction=True),
    "fedexp": fedsps.FedExP(client_stepsize=0.05),
    "deltasgd": fedsps.DeltaSGD(),
    "local amsgrad": fedsps.LocalAMSGrad(client_stepsize=0.01),
    "local adaalter": fedsps.LocalAdaAlter(),
    "fedprox": fedsps.FedProx(client_stepsize=0.05),
    "mime": fedsps.Mime(client_stepsize=0.05),
    "mimelite": fedsps.MimeLite(client_stepsize=0.05),
    "scaffold": fedsps.Scaffold(client_stepsize=0.05),
    "sps, prox": Algorithm(stepsize=SPS(), penalty=Proximal(0.3)),
    "sps, amsgrad, polynomial average": Algorithm(
        stepsize=SPS(), server=AMSGrad(stepsize=0.1), output=PolynomialAverage()
    ),
    "sps, fedexp": Algorithm(stepsize=SPS(), server=Extrapolation()),
    "ngn": Algorithm(stepsize=NGN(cap=2.0)),
    "ngn, diagonal, polynomial average": Algorithm(
        stepsize=NGN(), server=DiagonalExtrapolation(), output=PolynomialAverage()
    ),
    "common, diagonal": Algorithm(stepsize=CommonStepsize(initial=0.05), server=DiagonalExtrapolation(forget=0.1)),
    "sps, diagonal, momentum": Algorithm(stepsize=SPS(), server=DiagonalExtrapolation(forget=0.01, momentum=0.9)),
    "plateau": Algorithm(stepsize=PlateauStepsize(bold=0.05, least_rounds=3, rise=1.2, memory=3.0)),
    "fedpolyak": fedsps.FedPolyak(),
    "fedpolyak, begun anew": BEGUN_ANEW,
    "adasps": Algorithm(stepsize=AdaSPS()),
    "adasps, not monotone": Algorithm(stepsize=AdaSPS(scale=0.5, monotone=False)),
    "fedavg, top-k": Algorithm(stepsize=Constant(0.05), compression=TopK(share=0.3)),
    "sps, sign, amsgrad": Algorithm(stepsize=SPS(), server=AMSGrad(stepsize=0.1), compression=ScaledSign()),
}
