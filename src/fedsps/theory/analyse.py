"""`analyse`: a model, the clients' data and an algorithm in, what the theory says of them out."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedsps.checks import count
from fedsps.core.algorithm import Algorithm
from fedsps.core.kinds import StepsizeRule
from fedsps.core.plan import Knobs, Plan, takes_plan
from fedsps.data.clients import ClientData, Samples
from fedsps.engine.round import play_round
from fedsps.engine.setup import Setup, start, suited
from fedsps.engine.trial import prepare
from fedsps.errors import ConfigurationError
from fedsps.methods.fedsps import FedSPS
from fedsps.model.device import placed
from fedsps.model.logistic import network_of
from fedsps.model.losses import chosen_loss
from fedsps.model.network import Loss, Network
from fedsps.rules.global_stepsize import GlobalStepsize
from fedsps.rules.polyak import SPS, Lower, PolyakRule
from fedsps.rules.stepsize import Constant
from fedsps.theory.analysis import OF_FEDAVG, OF_FEDSPS, Analysis
from fedsps.theory.bounds import Theorem
from fedsps.theory.constants import Constants
from fedsps.theory.curvature import Curvature, estimated, linear_form, of_linear
from fedsps.theory.lower_bounds import too_high
from fedsps.theory.objective import Objective
from fedsps.theory.optimum import minimum


@takes_plan
def analyse(
    model: nn.Module,
    clients: Sequence[Samples] | ClientData,
    *,
    algorithm: Algorithm | None = None,
    loss: Loss | str = F.cross_entropy,
    trained: nn.Module | None = None,
    trial_rounds: int = 20,
    iterations: int | None = None,
    **plan: Unpack[Knobs],
) -> Analysis:
    """How heterogeneous the clients are, and what FedSPS will do with them, before training or after.

    Linear models under a squared loss or a cross-entropy are known to be convex: L is exact or a bound from above, and
    f* and x* are found by L-BFGS. Of any other model L is estimated at its parameters. A few rounds are played to see
    how often the cap binds.

    Args:
        model: any `nn.Module`, at the parameters that training starts from.
        clients: one `(inputs, targets)` pair or data set for each client, as in `train`.
        algorithm: what would be trained with; `FedSPS()` if not given.
        loss: any torch loss of (outputs, targets) that gives one number for a batch, or its name, as in `train`.
        trained: the same model after training, to be looked at too: `train(...).model`.
        trial_rounds: rounds that are played to see how often the cap binds.
        iterations: of L-BFGS, at most; if not given, 2000, or fewer where one takes long.
        **plan: the fields of `Plan`.

    >>> inputs = torch.tensor([[1.0], [2.0], [3.0]])
    >>> clients = [(inputs, inputs + 1.0), (inputs, inputs - 1.0)]
    >>> found = analyse(nn.Linear(1, 1), clients, loss=F.mse_loss, batch_size=None)
    >>> found.model, round(found.optimum.value, 6), round(found.gap, 6), round(found.noise.clients, 6)
    ('least squares', 1.0, 1.0, 20.0)
    """
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    algorithm = FedSPS() if algorithm is None else algorithm
    if not isinstance(algorithm, Algorithm):
        raise ConfigurationError(f"algorithm must be one, like fedsps.FedSPS(); got {algorithm!r}")
    count("trial_rounds", trial_rounds)
    loss = chosen_loss(loss)
    asked = Plan.of(**plan)
    network = network_of(placed(model, asked.device), placed(loss, asked.device))
    data = ClientData.of(clients)
    setup = Setup(asked, network, suited(network, data), algorithm)
    capped = capped_share(setup, trial_rounds)
    precise = _precise(model, loss, network.squeezed)
    objective = Objective.of(replace(setup, data=data), precise)
    form = linear_form(model, loss)
    curvature = (
        estimated(precise, objective.data, asked.batch_size, asked.seed)
        if form is None
        else of_linear(form, objective.data, asked.batch_size)
    )
    optimum = None if form is None else minimum(objective, form, iterations)
    first_loss, last_loss, capped_at_end = objective(precise.x)[0].item(), np.nan, np.nan
    x, where = precise.x, "the start"
    if trained is not None:
        after = network_of(placed(trained, asked.device), placed(loss, asked.device))
        after.squeezed = network.squeezed
        capped_at_end = capped_share(replace(setup, network=after), trial_rounds)
        precise = _precise(trained, loss, network.squeezed)
        objective = replace(objective, network=precise)
        x, where = precise.x, "the trained model"
        last_loss = objective(x)[0].item()
    if optimum is not None and optimum.x is not None:
        x, where = optimum.x, "x*" if optimum.is_exact else "the best point found"
    present = (setup.data.sizes > 0).nonzero()[0]
    names = [setup.data.labels[client] for client in present]
    lower = torch.as_tensor(lower_of(algorithm.stepsize), dtype=torch.float64).expand(setup.data.clients)[present]
    wrong = too_high(objective, form, x, lower, names)
    gap = np.nan if optimum is None or wrong is not None else max(0.0, optimum.value - float(objective.shares @ lower))
    noise = objective.noise(x, asked.seed)
    distance = 0.0 if optimum is None or optimum.x is None else float((network.x.cpu() - optimum.x).square().sum())
    return Analysis(
        model=type(model).__name__ if form is None else form.kind,
        is_convex=form is not None,
        curvature=curvature,
        first_loss=first_loss,
        optimum=optimum,
        noise=noise,
        where=where,
        too_high=wrong,
        gap=gap,
        cap=fixed_cap(algorithm.stepsize),
        theorems=theorems_about(algorithm),
        constants=_constants(algorithm, asked, curvature, gap, distance, objective),
        capped=capped,
        capped_at_end=capped_at_end,
        last_loss=last_loss,
        iterations=asked.rounds * asked.local_steps,
        batch=asked.batch_size,
        cohort=asked.cohort if asked.absences is None else asked.active(setup.data.clients),
    )


def _precise(module: nn.Module, loss: Loss, squeezed: bool) -> Network:
    """The network on the host in float64."""
    inner = copy.deepcopy(loss).cpu().double() if isinstance(loss, nn.Module) else loss
    network = network_of(copy.deepcopy(module).cpu().double(), inner)
    network.squeezed = squeezed
    return network


def lower_of(rule: StepsizeRule) -> Lower:
    """l* of the rule, or of the clients' own rule; 0 for rules that have none."""
    own = rule.local if isinstance(rule, GlobalStepsize) else rule
    return own.lower if isinstance(own, PolyakRule) else 0.0


def fixed_cap(rule: StepsizeRule) -> float | None:
    """gamma_b where it is the same at every step, also of clients that share their stepsizes; else None."""
    own = rule.local if isinstance(rule, GlobalStepsize) else rule
    return own.cap if isinstance(own, SPS) and own.smoothing is None else None


def theorems_about(algorithm: Algorithm) -> tuple[Theorem, ...]:
    """The theorems that the paper states of the algorithm: FedSPS with a fixed cap, or FedAvg; else none.

    The server must take the plain mean of the clients' points, and they must go along their gradients.

    >>> len(theorems_about(FedSPS())), len(theorems_about(FedSPS(server_stepsize=2.0)))
    (5, 0)
    """
    rule = algorithm.stepsize
    if algorithm.with_parts(output=None) != Algorithm(stepsize=rule):
        return ()
    if isinstance(rule, Constant):
        return OF_FEDAVG
    return OF_FEDSPS if isinstance(rule, SPS) and rule.smoothing is None else ()


def _constants(
    algorithm: Algorithm, plan: Plan, curvature: Curvature, gap: float, distance: float, objective: Objective
) -> Constants | None:
    """What the theorems need, where they are about the algorithm and the loss is curved.

    FedAvg is FedSPS with its stepsize as the cap: for those that the theorems allow, that always binds with c = 1/2.
    """
    rule = algorithm.stepsize
    if not theorems_about(algorithm) or curvature.smoothness <= 0:
        return None
    scale, cap = (rule.scale, rule.cap) if isinstance(rule, SPS) else (0.5, cast(Constant, rule).stepsize)
    return Constants(
        smoothness=curvature.smoothness,
        convexity=max(0.0, curvature.convexity),
        scale=scale,
        cap=cap,
        local_steps=plan.local_steps,
        clients=len(objective.shares),
        gap=0.0 if np.isnan(gap) else gap,
        distance=distance,
    )


def capped_share(setup: Setup, rounds: int) -> float:
    """The share of local steps at which the cap of SPS binds, over so many rounds; NaN if there is no fixed cap."""
    cap = fixed_cap(setup.algorithm.stepsize)
    if cap is None:
        return np.nan
    setup, collect = prepare(setup, "auto")
    state, at_cap, steps = start(setup), 0, 0
    for _ in range(rounds):
        state, done = play_round(setup, state, collect)
        if done.trace is None:
            return np.nan
        stepsizes = done.trace.stepsizes
        at_cap += int((stepsizes >= cap * (1 - 1e-6)).sum())  # a mean of caps is one but for rounding
        steps += stepsizes.numel()
    return at_cap / steps
