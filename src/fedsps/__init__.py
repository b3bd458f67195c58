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

from fedsps import optim
from fedsps.algorithm import Algorithm
from fedsps.catalogue import build
from fedsps.errors import ConfigurationError, DataError, FedspsError, LowerBoundError
from fedsps.methods.deltasgd import DeltaSGD
from fedsps.methods.fedams import FedAMS
from fedsps.methods.fedavg import FedAvg, FedAvgM
from fedsps.methods.fedexp import FedExP
from fedsps.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedsps.methods.fedprox import FedProx
from fedsps.methods.fedsps import FedDecSPS, FedSPS, FedSPSGlobal, FedSPSNormalized
from fedsps.methods.local_adaalter import LocalAdaAlter
from fedsps.methods.local_amsgrad import LocalAMSGrad
from fedsps.methods.mime import Mime, MimeLite
from fedsps.methods.scaffold import Scaffold
from fedsps.result import Result
from fedsps.run import load, run
from fedsps.spec import Spec
from fedsps.training import train
from fedsps.version import __version__

__all__ = [
    "Algorithm",
    "ConfigurationError",
    "DataError",
    "DeltaSGD",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedDecSPS",
    "FedExP",
    "FedProx",
    "FedSPS",
    "FedSPSGlobal",
    "FedSPSNormalized",
    "FedYogi",
    "FedspsError",
    "LocalAMSGrad",
    "LocalAdaAlter",
    "LowerBoundError",
    "Mime",
    "MimeLite",
    "Result",
    "Scaffold",
    "Spec",
    "__version__",
    "build",
    "load",
    "optim",
    "run",
    "train",
]
