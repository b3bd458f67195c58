"""The server's side: the rounds of an algorithm over Flower's grid, with the answers of whoever is there."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
import torch.nn.functional as F
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from fedsps import history, robust, streams
from fedsps.data.federated import Federation, Samples, held_out
from fedsps.engine.answer import Answer, gather
from fedsps.engine.flower import wire
from fedsps.engine.flower.check import accept, accept_scores, infinite, rehearse
from fedsps.engine.flower.folder import Saver
from fedsps.engine.flower.roll import Roll
from fedsps.engine.flower.settings import Settings, digest
from fedsps.engine.flower.store import NEVER
from fedsps.engine.round import Collected
from fedsps.engine.setting import Setting, State, start
from fedsps.errors import ConfigurationError, DataError, FedspsError, LowerBoundError
from fedsps.lock import only_one
from fedsps.logistic import objective
from fedsps.network import Loss
from fedsps.objective import Objective
from fedsps.parts import Exchange, Trace
from fedsps.privacy import epsilon, explain, one_vector_only
from fedsps.result import Result
from fedsps.session import Evaluate, Row, Session, check_bound, on_test
from fedsps.shapes import DTYPES
from fedsps.streams import Rows


def server_app(
    model: Callable[[Context], nn.Module],
    test: Callable[[Context], Samples] | None = None,
    loss: Loss = F.cross_entropy,
) -> ServerApp:
    """A Flower `ServerApp` for every algorithm of the catalogue.

    Args:
        model: makes the module; training starts from its parameters (drawn under the run's seed).
        test: loads the server's own test data, if it has any.
        loss: the clients' loss.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = Settings.of(context.run_config)
        with streams.torch_seed(settings.seed, "model"):
            module = model(context)
        try:
            federate(grid, settings, module, None if test is None else test(context), loss)
        except FedspsError as error:
            say(f"error: {error}")
            raise

    return app


def federate(
    grid: Grid,
    settings: Settings,
    module: nn.Module,
    test: Samples | None = None,
    loss: Loss = F.cross_entropy,
    kind: Callable[[Roll, str, robust.Mean], "Server"] | None = None,
) -> Result:
    """Run a federation to its end, from the last checkpoint if there is one, and write its run folder."""
    torch.set_num_threads(settings.threads)
    goal = objective(module.to(DTYPES[settings.dtype]), loss)
    roll = Roll(grid, settings)
    spec = settings.spec(goal, roll.count())
    name = digest(spec)
    folder = Path(settings.runs or platformdirs.user_data_path("fedsps") / "runs").expanduser().resolve() / name
    privacy = settings.privacy
    server = (kind or Server)(roll, name, robust.parse(settings.mean) if privacy is None else privacy.mean)
    folder.mkdir(parents=True, exist_ok=True)
    with only_one(folder, f"another server works on this run in {folder}: wait for it, or stop it"):
        return _run(server, goal, spec, Saver(folder, name, str(goal.x.device)), test)


def _run(server: "Server", goal: Objective, spec: dict[str, Any], saver: Saver, test: Samples | None) -> Result:
    roll, folder = server.roll, saver.folder
    settings, privacy = roll.settings, roll.settings.privacy
    saver.forget_finished()
    found = saver.load()
    if found is None:
        sizes = roll.known_sizes()
    else:
        sizes = found[0].clients["sizes"].numpy()
        roll.wait(min(30.0, settings.start_deadline), lambda: not roll.missing)
        say(f"going on after round {found[0].round}")
    setting = _setting(settings, Federation(torch.empty(0), torch.empty(0), sizes), goal)
    setting.algorithm.check(setting.federation.clients)
    held = None if test is None else held_out(test).to(goal.x, goal.accepted)
    server.noted.extend(roll.complaints)
    state = replace(start(setting), clients=_ledger(sizes))

    def evaluate(state: State) -> dict[str, float]:
        return server.evaluate(setting, state) | on_test(setting, state, held)

    session = NotedSession(setting, state, server, evaluate)
    say(f"{settings.algorithm} with {len(sizes)} clients, {settings.rounds} rounds; run folder {folder}")
    session.go_on(
        settings.rounds,
        evaluate_every=settings.evaluate_every,
        callback=lambda row: say(line(row | server.untold, settings.rounds, setting.cohort)),
        saver=saver,
        save_seconds=0,
    )
    if session.diverged_at is not None:
        say(f"diverged in round {session.diverged_at}: the model is that of round {session.state.round}")
    model = goal.module(session.state.result, session.state.buffers)
    table = history.frame(
        [row | server.untold for row in session.rows], [*history.COLUMNS, *history.FEDERATION_COLUMNS]
    )
    facts: dict[str, Any] = {"clients": len(sizes)} | ({} if server.private else {"train_samples": int(sizes.sum())})
    if privacy is not None:
        claim = privacy.claim(session.state.clients["counted"].tolist(), session.state.round, setting.cohort)
        facts["privacy"] = claim
        say(explain(claim))
    result = Result(model, table, spec, session.diverged_at, facts)
    result.save(folder)
    saver.path.unlink(missing_ok=True)
    say(f"finished: {folder}")
    return result


def _setting(settings: Settings, federation: Federation, goal: Any) -> Setting:
    """The run, seen from the server, which knows how many samples each client has and nothing else."""
    algorithm = settings.built
    if settings.mean != "mean" and not algorithm.sends_delta_only:
        sent = ", ".join(name for part in algorithm.parts for name in part.sends)
        raise ConfigurationError(
            f"mean = {settings.mean!r} is for algorithms that send delta alone; {settings.algorithm} also sends {sent}"
        )
    if settings.privacy is not None:
        one_vector_only("differential privacy (clip-norm)", settings.algorithm, algorithm, goal)
    setting = settings.setting(goal, federation)
    for name, value in (("cohort", setting.cohort), ("minimum-cohort", settings.minimum_cohort)):
        if value > federation.clients:
            raise ConfigurationError(f"{name} is {value}, but there are only {federation.clients} clients")
    return setting


class NotedSession(Session):
    """A session whose rows also tell what was noted beside training."""

    def __init__(self, setting: Setting, state: State, server: "Server", evaluate: Evaluate) -> None:
        super().__init__(setting, state, server.collect, evaluate)
        self.noted = server.noted

    def advance(self, evaluate: bool) -> Row:
        """Play one round, add its row to the history, and return it."""
        row = super().advance(evaluate)
        row["events"] = "; ".join(filter(None, [row["events"], *self.noted]))
        self.noted.clear()
        return row


def _ledger(sizes: Rows) -> dict[str, Tensor]:
    """What the server knows of the clients, as a part of the state that is saved: their own states stay with them."""
    return {
        "sizes": torch.from_numpy(sizes),
        "since": torch.full((len(sizes),), NEVER),  # the last round in which each one's answer was counted
        "counted": torch.zeros(len(sizes), dtype=torch.int64),  # in how many rounds that was
        "token": torch.tensor(secrets.randbits(62)),
    }


@dataclass(frozen=True)
class Heard:
    """The answers of an exchange by client: those that count, and those that no repetition would mend."""

    sound: dict[int, Answer] = field(default_factory=dict)
    infinite: dict[int, Answer] = field(default_factory=dict)
    below: dict[int, LowerBoundError] = field(default_factory=dict)

    @property
    def refused(self) -> list[int]:
        """Clients that need not be asked again."""
        return [*self.infinite, *self.below]

    def half(self, some: Mapping[int, object]) -> bool:
        """At least half of the answers are such. A few clients may be broken; so many are the run's own fault."""
        return bool(some) and 2 * len(some) >= len(self.sound) + len(self.refused)


def alone(trace: Trace | None) -> Trace | None:
    """The trace of one client as that of a cohort of one."""
    return None if trace is None else Trace(*(value.unsqueeze(0) for value in vars(trace).values()))


def no_mean(values: Tensor, weights: Tensor) -> Tensor:
    """The mean where the run has diverged, whatever mean it takes: NaN, on which a session ends."""
    return torch.full_like(values[0], torch.nan)


@dataclass(frozen=True)
class Server:
    """Collects the answers of an exchange, and of evaluations."""

    roll: Roll
    digest: str
    mean: robust.Mean
    noted: list[str] = field(default_factory=list, init=False)  # events for the row of the round

    @property
    def private(self) -> bool:
        """Whether the clients tell nothing of their data beside the message."""
        return self.roll.settings.privacy is not None

    @property
    def untold(self) -> Row:
        """Columns of the history that this server cannot know, as NaN."""
        return {}

    def collect(self, setting: Setting, state: State, exchange: Exchange, audience: Rows) -> Collected:
        """Ask the audience; a round that too few answer is repeated. Where one client is enough, try them in turn.

        What a client computes is decided by the seed: one whose numbers were refused is not asked again.
        """
        settings = self.roll.settings
        hoped, groups = audience, [audience] * (1 + settings.retries)
        if exchange.first_client_only:
            hoped = setting.cohort_of(state.round)
            groups = [np.array([client]) for client in hoped]
        least = 1 if exchange.first_client_only else min(settings.minimum_cohort, len(audience))
        heard, events = Heard(), []

        def there() -> set[int]:
            return set(hoped.tolist()).intersection(self.roll.nodes).difference(heard.refused)

        for attempt, group in enumerate(groups):
            events += self.roll.wait(settings.deadline if attempt else 0, lambda: len(there()) >= least)
            failures = self._hear(setting, state, exchange, np.setdiff1d(group, heard.refused), heard)
            events += failures
            left = len(hoped) - len(heard.refused)
            if len(heard.sound) >= least or left < least or left <= len(heard.refused):
                break
        answers = heard.sound
        done = exchange.first_client_only and bool(answers)
        if heard.half(heard.below) and not done:
            raise next(iter(heard.below.values()))
        diverged = heard.half(heard.infinite) and not done
        if diverged:
            answers = dict(sorted((heard.sound | heard.infinite).items()))
        elif len(answers) < least:
            raise DataError(
                f"round {state.round + 1}: {len(answers)} of {len(audience)} clients answered, {least} are needed "
                f"({'; '.join(failures)}). Run it again to go on from round {state.round}"
            )
        clients = np.array(list(answers), dtype=np.int64)
        states = state.clients if exchange.action != "train" else counted(state, clients)
        means = no_mean if diverged else self.mean
        found = gather(setting, state, exchange, clients, list(answers.values()), states, means)
        return replace(found, events=tuple(events))

    def _hear(self, setting: Setting, state: State, exchange: Exchange, audience: Rows, heard: Heard) -> list[str]:
        """Ask and sort the answers, by client in ascending order; what went wrong with those that do not count."""
        message, trace = rehearse(setting, state, exchange)
        if self.private:
            trace = None  # nor are buffers sent
        received = wire.arrays(exchange.broadcast(state.server))
        model = wire.model(state.x, state.buffers)
        requests = {
            client: RecordDict({"ask": self._ask(state, exchange, client), "received": received} | model)
            for client in audience.tolist()
        }
        heard.sound.clear()
        events = []
        kind = "train.train" if exchange.action == "train" else "train.probe"
        for client, content in self.roll.ask(requests, kind).items():
            try:
                if isinstance(content, DataError):
                    raise content
                answer = accept(content, message, trace, state)
                name = infinite(answer)
                if name is not None:
                    heard.infinite[client] = answer
                    raise DataError(f"{name} holds NaN or infinity")
                check_bound(state.round + 1, alone(answer.trace), np.array([client]))
                heard.sound[client] = answer
                if wire.told(content, "facts").get("lost"):
                    events.append(f"client {client}: its state was lost, it started anew")
            except LowerBoundError as error:
                heard.below[client] = error
                events.append(f"client {client}: it says that a loss fell below its lower bound")
            except DataError as error:
                events.append(f"client {client}: {error}")
        return events

    def _ask(self, state: State, exchange: Exchange, client: int) -> Any:
        return wire.facts(
            digest=self.digest,
            token=str(int(state.clients["token"])),
            round=state.round,
            action=exchange.action,
            since=int(state.clients["since"][client]),
        )

    def evaluate(self, setting: Setting, state: State) -> dict[str, float]:
        """The objective, and loss and accuracy on the clients' own test data, over those that answer."""
        privacy, clients = self.roll.settings.privacy, setting.federation.clients
        if privacy is not None:  # what clients say of their data is not covered by it
            most = int(state.clients["counted"].max())
            return {"epsilon": epsilon(most, clients, clients, privacy.noise_multiplier, privacy.delta)}
        if not state.result.isfinite().all():  # diverged: there is nothing to ask
            return {}
        model = wire.model(state.result, state.buffers)
        answers = self.roll.ask({client: RecordDict(dict(model)) for client in range(clients)}, "evaluate")
        found = {}
        for client, content in answers.items():
            try:
                if isinstance(content, DataError):
                    raise content
                found[client] = accept_scores(content, self.roll.held[client])
            except DataError as error:
                self.noted.append(f"client {client}: no scores ({error})")
        beyond = {client for client, scores in found.items() if not np.isfinite(list(scores.values())).all()}
        self.noted.extend(f"client {client}: its loss is not finite" for client in sorted(beyond))
        if 2 * len(beyond) < len(found):  # of a few only: they are left out
            found = {client: scores for client, scores in found.items() if client not in beyond}
        if not found:
            return {}
        shares = setting.shares(np.array(list(found))).numpy()
        scores = {"train_loss": float(shares @ [one["train_loss"] for one in found.values()])}
        for name in ("test_loss", "test_accuracy"):
            held = [one for one in found.values() if name in one]
            if held:
                counts = np.array([one["test_samples"] for one in held])
                scores[f"client_{name}"] = float(counts @ [one[name] for one in held] / counts.sum())
        return scores


def counted(state: State, clients: Rows) -> dict[str, Tensor]:
    """The ledger after a round in which these clients' answers were counted."""
    since, counted = state.clients["since"].clone(), state.clients["counted"].clone()
    since[torch.from_numpy(clients)] = state.round
    counted[torch.from_numpy(clients)] += 1
    return state.clients | {"since": since, "counted": counted}


def line(row: Row, rounds: int, cohort: int) -> str:
    """One round in one line."""
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
