"""Federated learning without learning-rate tuning.

Every client sets its own stepsize, at every local step, by the stochastic Polyak rule: the algorithms of *Locally
Adaptive Federated Learning* (Mukherjee, Loizou, Stich), next to those it is compared with.

Words in the code, symbols in the paper:

    stepsize          gamma      of a client's local step
    scale             c          of the Polyak rule (c_0 for FedDecSPS)
    cap               gamma_b    the largest stepsize
    lower             l*         a lower bound of the losses, one number or one for each client
    local_steps       tau        between two communications
    clients           n          of which the `cohort` takes part in a round
    delta             Delta      what a client's local steps changed, x_i - x
    client_stepsize   eta_l      where it is a constant
    server_stepsize   eta        of the server's rule
"""

from fedsps.algorithms import Algorithm, FedAvg, FedDecSPS, FedSPS, FedSPSGlobal, FedSPSNormalized
from fedsps.errors import ConfigurationError, DataError, FedspsError, LowerBoundError
from fedsps.result import Result
from fedsps.run import load, run
from fedsps.spec import Spec
from fedsps.training import train
from fedsps.version import __version__

__all__ = [
    "Algorithm",
    "ConfigurationError",
    "DataError",
    "FedAvg",
    "FedDecSPS",
    "FedSPS",
    "FedSPSGlobal",
    "FedSPSNormalized",
    "FedspsError",
    "LowerBoundError",
    "Result",
    "Spec",
    "__version__",
    "load",
    "run",
    "train",
]
