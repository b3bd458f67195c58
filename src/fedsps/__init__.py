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

The public names are in `__init__.pyi`. Each is imported when it is first used, so that the command's `--version` and
`--help` need not wait for torch.
"""

import lazy_loader

from fedsps.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
