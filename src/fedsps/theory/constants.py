"""The constants that the paper's theorems are about, side by side."""

from dataclasses import dataclass

from fedsps.checks import count, positive
from fedsps.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Constants:
    """A problem and a setting of FedSPS, as the theorems see them. Squares are named without the word.

    Attributes:
        smoothness: L, of every `F_i(., batch)`; a larger number than the true one keeps every bound true.
        convexity: mu, of every `F_i(., batch)`; 0 for what is convex alone.
        scale: c.
        cap: gamma_b.
        local_steps: tau.
        clients: n.
        gap: `sigma_f^2 = f* - mean_i l_i*`, the optimal objective difference.
        distance: `||x_0 - x*||^2`.
        excess: `F_0 = f(x_0) - f*`.
        variance: `sigma^2`, of the batches' gradients, at every point (the non-convex theorem alone).
        heterogeneity: `zeta^2`, of the clients' gradients, at every point (the non-convex theorem alone).

    >>> Constants(smoothness=10.0, scale=0.5, cap=1.0, local_steps=5).alpha
    0.1
    """

    smoothness: float
    scale: float
    cap: float
    local_steps: int
    convexity: float = 0.0
    clients: int = 1
    gap: float = 0.0
    distance: float = 0.0
    excess: float = 0.0
    variance: float = 0.0
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        for name in ("smoothness", "scale", "cap"):
            positive(name, getattr(self, name))
        for name in ("local_steps", "clients"):
            count(name, getattr(self, name))
        for name in ("convexity", "gap", "distance", "excess", "variance", "heterogeneity"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must be a number of at least 0; got {getattr(self, name)!r}")
        if self.convexity > self.smoothness:
            raise ConfigurationError(f"convexity is {self.convexity}, above the smoothness of {self.smoothness}")

    @property
    def least_ratio(self) -> float:
        """`1/(2 c L)`: no Polyak ratio over c is below it, so a cap of at most this always binds."""
        return 1 / (2 * self.scale * self.smoothness)

    @property
    def alpha(self) -> float:
        """`alpha = min(1/(2 c L), gamma_b)`, the least stepsize that can occur (lemma:sps_main_ineq)."""
        return min(self.least_ratio, self.cap)
