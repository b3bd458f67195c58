"""The toolbox: every part with which an algorithm can be composed, and the base classes for parts of one's own.

    from fedsps.rules import SPS, AMSGrad, PolynomialAverage

    fedsps.Algorithm(stepsize=SPS(cap=10.0), server=AMSGrad(), output=PolynomialAverage())

| kind | parts | base class |
| --- | --- | --- |
| stepsize | `Constant`, `SPS`, `DecSPS`, `NGN`, `AdaSPS`, `LocalSmoothness` | `StepsizeRule`, `PolyakRule` |
| the same for all clients | `GlobalStepsize`, `CommonStepsize`, `PlateauStepsize` | `StepsizeRule`, `PolyakRule` |
| direction | `Gradient`, `SharedMomentum`, `Mimicry`, `ControlVariates`, `LazyAdagrad`, `LocalMoments` | `Direction` |
| server | `Average`, `Momentum`, `Extrapolation`, `DiagonalExtrapolation`, `Normalized` | `ServerRule` |
| coordinate by coordinate | `Adagrad`, `Adam`, `Yogi`, `AMSGrad` | `ServerRule` |
| output | `LastIterate`, `MeanOfLastTwo`, `PolynomialAverage` | `OutputRule` |
| penalty | `Proximal` | `Penalty` |
| compression | `TopK`, `ScaledSign` | `Compression` |

What lives here is a frozen value with a formula, and imports `fedsps.core` alone. A file says in its `__all__` what it
adds to this page; a part with a `word` is known to the command line by it.
"""

from fedsps.core.contract import Exchange as Exchange
from fedsps.core.contract import Part as Part
from fedsps.core.contract import Seen as Seen
from fedsps.core.contract import Trace as Trace
from fedsps.core.contract import Work as Work
from fedsps.core.contract import observe as observe
from fedsps.core.kinds import Average as Average
from fedsps.core.kinds import Compression as Compression
from fedsps.core.kinds import Direction as Direction
from fedsps.core.kinds import Gradient as Gradient
from fedsps.core.kinds import LastIterate as LastIterate
from fedsps.core.kinds import OutputRule as OutputRule
from fedsps.core.kinds import Penalty as Penalty
from fedsps.core.kinds import ServerRule as ServerRule
from fedsps.core.kinds import StepsizeRule as StepsizeRule
from fedsps.core.vectors import Tensors as Tensors
from fedsps.core.vectors import along as along
from fedsps.core.vectors import norm_sq as norm_sq
from fedsps.core.vectors import scalars as scalars
from fedsps.core.vectors import times as times
from fedsps.rules.adaptive_server import *
from fedsps.rules.adasps import *
from fedsps.rules.aggregation import *
from fedsps.rules.common_stepsize import *
from fedsps.rules.compression import *
from fedsps.rules.control_variates import *
from fedsps.rules.diagonal import *
from fedsps.rules.global_stepsize import *
from fedsps.rules.local_adaptive import *
from fedsps.rules.mime import *
from fedsps.rules.ngn import *
from fedsps.rules.output import *
from fedsps.rules.penalty import *
from fedsps.rules.plateau import *
from fedsps.rules.polyak import *
from fedsps.rules.server import *
from fedsps.rules.stepsize import *
