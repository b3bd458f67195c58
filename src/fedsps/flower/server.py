"""The server's side: the rounds of an algorithm over Flower's grid, with the answers of whoever is there.

The rounds are those of `fedsps.engine.session`, with a collector that asks nodes instead of computing. Each round is
saved when it is done; a server that was killed goes on after the last one when the run is started again.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
import torch.nn.functional as F
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedsps.core import streams
from fedsps.core.vectors import DTYPES
from fedsps.data.clients import ClientData, Samples, held_out
from fedsps.data.columns import Columns
from fedsps.engine import history
from fedsps.engine.history import Row
from fedsps.engine.session import Scores, Session, on_held_out
from fedsps.engine.setup import Setup, State, start
from fedsps.errors import ConfigurationError, FedspsError
from fedsps.flower import versions
from fedsps.flower.check import bounded_only
from fedsps.flower.collect import Server, new_ledger
from fedsps.flower.config import COLUMNS, RunConfig
from fedsps.flower.courier import Courier
from fedsps.flower.membership import Membership
from fedsps.flower.plain import PlainTransport, whereabouts
from fedsps.flower.privacy import explain
from fedsps.flower.table import given, together
from fedsps.flower.transport import MakeTransport
from fedsps.model.logistic import network_of
from fedsps.model.network import Loss, Network, kind_of_outputs
from fedsps.runs.checkpoint import Checkpoint
from fedsps.runs.files import only_one
from fedsps.runs.result import SUMMARY, Result, frame
from fedsps.runs.scores import told_table
from fedsps.runs.spec import Spec


def server_app(
    model: Callable[[Context], nn.Module],
    test: Callable[[Context], Samples] | None = None,
    loss: Loss = F.cross_entropy,
    transport: MakeTransport = PlainTransport,
    table: bool = False,
) -> ServerApp:
    """A Flower `ServerApp` for every algorithm of the catalogue.

    Args:
        model: makes the module; training starts from its parameters (drawn under the run's seed).
        test: loads the server's own test data, if it has any.
        loss: the clients' loss.
        transport: how answers travel; see `fedsps.flower.secagg` for sums that hide single clients.
        table: whether the sites' data are tables (`SiteTable`): their columns are fitted to the sums of all of them
            before the model is made, which finds them by `columns_of(context)`.

    >>> type(server_app(lambda context: nn.Linear(4, 3))).__name__
    'ServerApp'
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        """Read the configuration, draw the model, run; an error of ours is said in the log before it is raised."""
        try:
            config = RunConfig.of(context.run_config)
            if table and config.columns is None:
                columns = fitted_columns(grid, config, versions.of_app(model))
                context.run_config = {**context.run_config, COLUMNS: json.dumps(columns.json())}
                config = RunConfig.of(context.run_config)
            with streams.torch_seed(config.plan.seed, "model"):
                module = model(context)
            held = None if test is None else test(context)
            federate(grid, config, module, held, loss, transport, context, versions.of_app(model))
        except FedspsError as error:
            say(f"error: {error}")
            raise

    return app


def fitted_columns(grid: Grid, config: RunConfig, app: str = "") -> Columns:
    """How rows of all sites' tables become inputs: one exchange, in which each site tells the sums of its own.

    Args:
        grid: Flower's way to the nodes.
        config: the run configuration.
        app: the digest of the app, which nodes must have too; empty asks for none.

    Raises:
        ConfigurationError: nodes that did not come in time, a site that does not tell, or tables that do not fit.
    """
    membership = Membership(Courier(grid, config.poll), config, app=app, query="query.table")
    membership.count()
    membership.known_sizes()
    columns = together(membership.told)
    say(
        f"the tables of {membership.partitions} clients: {len(columns.features)} inputs, {len(columns.classes)} classes"
    )
    return columns


def federate(
    grid: Grid,
    config: RunConfig,
    module: nn.Module,
    test: Samples | None = None,
    loss: Loss = F.cross_entropy,
    transport: MakeTransport = PlainTransport,
    context: Context | None = None,
    app: str = "",
) -> Result:
    """Run a federation to its end, from the last checkpoint if there is one, and write its run folder.

    Args:
        grid: Flower's way to the nodes.
        config: the run configuration.
        module: the model before training.
        test: the server's own test data, if it has any.
        loss: the clients' loss.
        transport: how answers travel.
        context: Flower's, for transports that need it.
        app: the digest of the app, which nodes must have too; empty asks for none.

    Returns:
        The trained model with its history, as it lies in the run folder `RUNS/DIGEST`.

    Raises:
        ConfigurationError: settings that do not go together, or nodes that did not come in time.
        DataError: too few clients answered a round, also when it was repeated; the checkpoint stays.
        LowerBoundError: half of the clients saw a loss below the `lower` of their stepsize rule.
    """
    torch.set_num_threads(config.threads)
    network = network_of(module.to(DTYPES[config.dtype]), loss)
    beside = {} if config.columns is None else given(config.columns)
    membership = Membership(Courier(grid, config.poll, beside), config, app=app)
    spec = config.spec(network, membership.count())
    folder = Path(config.runs or platformdirs.user_data_path("fedsps") / "runs").expanduser().resolve() / spec.digest
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(membership, transport(membership, context, spec.digest))
    with only_one(folder, f"another server works on this run in {folder}: wait for it, or stop it"):
        return _run(server, network, spec, RunFolder(folder, spec.digest, str(network.x.device)), test, loss)


def _run(server: Server, network: Network, spec: Spec, folder: "RunFolder", test: Samples | None, loss: Loss) -> Result:
    """The rounds themselves, once the folder is locked, and what is written at the end."""
    membership, config = server.membership, server.config
    folder.forget_finished()
    saved = folder.load()
    if saved is None:
        sizes = membership.known_sizes()
    else:
        sizes = saved[0].ledger["sizes"].numpy()
        membership.wait(min(30.0, config.start_deadline), lambda: not membership.missing)
        say(f"going on after round {saved[0].round}")
    setup = _setup(config, ClientData(torch.empty(0), torch.empty(0), sizes), network)
    server.transport.check(setup)
    if setup.own_layers is not None and test is not None:
        raise ConfigurationError(
            "the server has no batch-norm layers of its own to test with (local-batch-norm): leave its test data out, "
            "and give the clients theirs (SiteData.test)"
        )
    held = None if test is None else held_out(test).to(network.x, network.accepted)

    def evaluate(state: State) -> Scores:
        """What the clients say of the model, and what the server's own test data say."""
        scores = server.evaluate(setup, state)
        return Scores(scores.values | on_held_out(setup, state, held), scores.events, scores.clients)

    state = start(setup, new_ledger(sizes))
    session = Session(setup, state, server.collect, evaluate, membership.complaints)
    say(f"{config.algorithm} with {len(sizes)} clients, {config.plan.rounds} rounds; run folder {folder.folder}")
    _say_what_is_other(config)
    cohort = config.plan.active(len(sizes))
    began = time.monotonic()

    def tell(row: Row) -> None:
        """The line of a round, with all the time since the line before: training, evaluation and saving.

        Where scores are asked for together with the next round's work, that is in this line.
        """
        nonlocal began
        took, began = time.monotonic() - began, time.monotonic()
        say(line(row | {"seconds": took}, config.plan.rounds, cohort))

    session.run(callback=tell, saver=folder, save_seconds=0)
    if session.diverged_at is not None:
        say(f"diverged in round {session.diverged_at}: the model is that of round {session.state.round}")
    facts: dict[str, Any] = {"clients": len(sizes), "model": _short(network), "outputs": kind_of_outputs(loss)}
    if server.tells:
        facts["train_samples"] = int(sizes.sum())
    if config.columns is not None:
        facts["class_names"] = list(config.columns.classes)
    if config.privacy is not None:
        counted = session.state.ledger["counted"].tolist()
        facts["privacy"] = config.privacy.claim(counted, session.state.round, cohort)
        say(explain(facts["privacy"]))
    end = session.end
    result = Result(
        model=network.module(end.x, end.buffers),
        history=frame(session.rows, [*history.COLUMNS, *history.FEDERATION_COLUMNS]),
        spec=spec,
        diverged_at=session.diverged_at,
        data=facts,
        columns=config.columns,
        clients=told_table(session.told, sizes, session.state.tally) if server.tells and session.told else None,
    )
    result.save(folder.folder)
    folder.forget()
    if setup.client_init(state.x, state.buffers):
        left = membership.farewell(RecordDict({"ask": whereabouts(spec.digest, session.state)}))
        if left:
            say(f"the states of clients {', '.join(map(str, left))} stay on their disks: they did not answer")
    say(f"finished: {folder.folder}")
    return result


def _say_what_is_other(config: RunConfig) -> None:
    """A run with differential privacy may have another stepsize rule than the algorithm's name says."""
    if not config.clip_norm:
        return
    asked, built = config.named.build().stepsize, config.built.stepsize
    if built != asked:
        say(
            f"differential privacy: {config.algorithm} goes by the stepsize rule {built.word} in place of {asked.word}"
            ", whose reports have no range; fedsps bears noise better"
        )


def _setup(config: RunConfig, data: ClientData, network: Network) -> Setup:
    """The run, seen from the server, which knows how many samples each client has and nothing else.

    Raises:
        ConfigurationError: a robust mean or differential privacy with an algorithm or model that it is not for, or a
            minimum cohort above the number of clients.
    """
    algorithm = config.built
    if config.mean != "mean" and not algorithm.sends_delta_only:
        sent = ", ".join(name for part in algorithm.parts for name in part.sends)
        raise ConfigurationError(
            f"mean = {config.mean!r} is for algorithms that send delta alone; {config.algorithm} also sends {sent}"
        )
    setup = config.setup(network, data)
    if config.privacy is not None:
        bounded_only("differential privacy (clip-norm)", config.algorithm, setup)
    if setup.own_layers is not None and config.plan.restore_best:
        raise ConfigurationError("restore-best is not for local-batch-norm: sites keep their layers of the last round")
    if config.minimum_cohort > data.clients:
        raise ConfigurationError(
            f"minimum-cohort is {config.minimum_cohort}, but there are only {data.clients} clients"
        )
    return setup


class RunFolder(Checkpoint):
    """A checkpoint in a folder that may hold a finished run, which stays until a round of the new one is saved.

    A finished run that is started again with the same spec is a new run in the same folder.
    """

    def save(self, state: State, rows: list[Row]) -> None:
        """Write all or nothing; with the first round the finished run is over."""
        super().save(state, rows)
        if rows:
            (self.folder / SUMMARY).unlink(missing_ok=True)

    def forget_finished(self) -> None:
        """A checkpoint beside a finished run is none to go on from."""
        if (self.folder / SUMMARY).exists():
            self.forget()


def _short(network: Network) -> str:
    """The class of the model, for the summary."""
    return network.description.partition("(")[0]


def line(row: Row, rounds: int, cohort: int) -> str:
    """One round in one line of the log; what was not measured in it is left out.

    Args:
        row: of the round.
        rounds: of the plan.
        cohort: how many clients a round asks.
    """
    words = [f"round {row['round']}/{rounds}"]
    for name, label in (
        ("cohort_loss", "cohort loss"),
        ("train_loss", "loss"),
        ("test_accuracy", "accuracy"),
        ("client_test_accuracy", "clients' accuracy"),
        ("epsilon", "epsilon"),
    ):
        if not np.isnan(row[name]):
            words.append(f"{label} {row[name]:.4f}")
    if not np.isnan(row["stepsize_mean"]):
        spread = "" if np.isnan(row["stepsize_std_clients"]) else f" ± {row['stepsize_std_clients']:.2g}"
        words.append(f"stepsize {row['stepsize_mean']:.3g}{spread}")
    words.append(f"{row['clients']} of {cohort} clients")
    words.append(f"{row['seconds']:.2f} s")
    return "  ".join(words) + (f"  [{row['events']}]" if row["events"] else "")


def say(text: str) -> None:
    """A line in the run's log, which Flower streams to whoever asked for the run."""
    print(text, flush=True)  # noqa: T201
