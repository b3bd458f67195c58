"""FedPolyak: no learning rate on the clients, none on the server."""

from typing import ClassVar

from fedsps.core.algorithm import Algorithm
from fedsps.rules.diagonal import DiagonalExtrapolation
from fedsps.rules.output import PolynomialAverage
from fedsps.rules.plateau import PlateauStepsize
from fedsps.rules.polyak import Lower


class FedPolyak(Algorithm):
    """Three ideas of Polyak's: a stepsize from loss and gradient, the like on the server, and an averaged output.

        clients     gamma = min( Gamma, 4 ratio ),    ratio = (F_i - lower_i) / ||g||^2,    share ratio at first
        server      best = mean of F_i - lower_i / mean of ||g||^2,    Gamma = share best at first
                    share = 0.1, or 0.003 where a first round at 0.1 did not do what its gradients promised, or
                    the loss has doubled after it: then the run begins anew
                    Gamma <- min( max( 1.1 Gamma, share of the loss that is gone times best ), s best )
                    x <- x + eta G^-1 Delta
                    eta = 1/2 min( mean_i ||Delta_i||^2, 30 ||Delta||^2 ) / (Delta^T G^-1 Delta)
        output      the polynomial-decay average of the iterates

    s is above 1 while the loss falls fast and shrinks where it rests (`PlateauStepsize`), G is the root of the sum of
    all Delta^2 (`DiagonalExtrapolation`). Nothing is to be set, and no units matter: a loss times a constant, or inputs
    times one where the model has weights for them alone, give the same run. The parts' own parameters are open to
    compositions.

    Args:
        lower: l*, a lower bound of the losses, one number or one for each client.

    References:
        Mukherjee, Loizou, Stich: Locally Adaptive Federated Learning (FedSPS-Global).
        Takakura, Liew, Hasegawa: FedDuA, 2025 (arXiv 2505.11126): a server of this kind.
        Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.
    """

    name: ClassVar[str] = "fedpolyak"
    family: ClassVar[str] = "no learning rate at all"
    adaptive: ClassVar[str] = "both"
    colour: ClassVar[str] = "#B2182B"

    def __init__(self, *, lower: Lower = 0.0) -> None:
        super().__init__(
            stepsize=PlateauStepsize(lower=lower), server=DiagonalExtrapolation(), output=PolynomialAverage()
        )
