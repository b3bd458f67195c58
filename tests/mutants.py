"""Wrong on purpose: one-line changes of the source, each of which a test must notice (`make mutants`).

Each mutant is made in a copy of the tree. The tests that should notice it run first, then the rest of the suite; one
that no test notices is a test that is missing.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "dist", "build", "demo")
OPTIONS = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not real"]
PATIENCE = 1800  # seconds; what takes longer counts as not noticed
FORKS = multiprocessing.get_context("forkserver")  # what takes long to import is imported once
LIBRARIES = ["torch.func", "pandas", "pyarrow.parquet", "sklearn.datasets", "matplotlib.pyplot", "optuna"]
LIBRARIES += ["flwr.serverapp", "flwr.clientapp", "flwr.server.workflow", "flwr.client.mod", "safetensors.torch"]


@dataclass(frozen=True)
class Mutant:
    """In a file of the package, `old` becomes `new`; the tests that should notice it, the likeliest first."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def path(self) -> Path:
        return Path("src", "fedsps", self.file)

    @property
    def title(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())}  ->  {' '.join(self.new.split())}"


MUTANTS = [
    # devices
    Mutant("core/vectors.py", "return torch.full(x.shape[:-1], _rounded(float(value), dtype), dtype=dtype, device=x.device)", "return torch.tensor(value, dtype=dtype).to(x.device).expand(x.shape[:-1]).clone()", "test_device::test_a_round_of_every_algorithm_stays_on_its_device_and_does_not_wait_for_it[logistic-stacked-all]"),
    Mutant("rules/polyak.py", "loss.device).take(seen.client)", "loss.device)[seen.client]", "test_device::test_a_round_of_every_algorithm_stays_on_its_device_and_does_not_wait_for_it[logistic-loop-all]"),
    Mutant("engine/batches.py", "how = (self.shared, self.masked[step])", "how = (self.shared,)", "test_device::test_a_round_of_every_algorithm_stays_on_its_device_and_does_not_wait_for_it[batchnorm-stacked-all]"),
    Mutant("data/clients.py", "any((1, 2)).tolist()", "all((1, 2)).tolist()", "test_device"),
    Mutant("model/device.py", "return copy.deepcopy(module).to(device)", "return module.to(device)", "test_device::test_a_module_is_moved_as_a_copy_and_so_is_a_loss_with_weights"),
    Mutant("model/device.py", "[*module.parameters(), *module.buffers()]", "[*module.parameters()]", "test_device::test_float64_on_mps_is_refused_with_the_remedy"),
    Mutant("model/device.py", 'for kind in ("cuda", "mps")', 'for kind in ("mps", "cuda")', "test_device::test_a_device_is_found_by_its_name"),
    Mutant("runs/checkpoint.py", "{name: _moved(tensor, device) for name, tensor in tensors.items()}", "tensors", "test_device::test_a_checkpoint_is_read_to_the_device_of_the_run_that_goes_on"),
    Mutant("runs/run.py", "find_device(spec.plan.device)  #", "pass  #", "test_device::test_auto_is_taken_and_recorded_and_a_finished_run_needs_no_device"),
    # core
    Mutant("core/vectors.py", "v = v.float()", "pass", "test_stepsize"),
    Mutant("core/vectors.py", "torch.maximum(self._sums[name], part)", "part", "test_doctests"),
    Mutant("core/vectors.py", "self._clients += len(next(iter(buffers.values()), ()))", "self._clients += 1", "test_network::test_batch_norm_statistics_are_the_uniform_mean_and_counters_the_maximum; test_network"),
    Mutant("core/vectors.py", "tensor.numel() * tensor.element_size()", "tensor.numel() * 4", "test_doctests"),
    Mutant("core/streams.py", "np.array(seed & _MASK, dtype=np.uint64)", "np.array(0, dtype=np.uint64)", "test_streams"),
    Mutant("core/streams.py", 'keys(seed, "cohort", round)', 'keys(seed, "cohort", 0)', "test_streams"),
    Mutant("core/streams.py", 'keys(seed, "batch", round, clients,', 'keys(seed, "batch", 0, clients,', "test_streams"),
    Mutant("core/streams.py", "(last + 1).astype(np.uint64)", "last.astype(np.uint64)", "test_streams"),
    Mutant("core/streams.py", "repeated[taken, j] = last[taken, j]", "repeated[taken, j] = last[taken, 0]", "test_streams"),
    Mutant("core/streams.py", "torch.default_generator.set_state(before)", "pass", "test_streams"),
    Mutant("core/plan.py", "if self.evaluate_every == 0 or round == self.rounds:", "if self.evaluate_every == 0:", "test_plan"),
    Mutant("core/plan.py", "self.cohort > clients", "self.cohort >= clients", "test_engines::test_whole_data_at_every_step"),
    Mutant("core/contract.py", "iteration=work.iteration + step", "iteration=work.iteration", "test_oracle::test_batches_and_client_sampling[FedDecSPS-False-uniform]"),
    Mutant("core/contract.py", "{name: value[order] for name, value in joined.items()}", "joined", "test_engines::test_the_record_follows_the_numbers_of_clients_not_their_sizes"),
    Mutant("core/kinds.py", 'wanted = delta + state["unsent"]', "wanted = delta", "test_compression"),
    Mutant("core/kinds.py", 'x + along(self.stepsize) * mean["delta"], state', 'x + mean["delta"], state', "test_reductions"),
    Mutant("core/local_training.py", "loss=seen_losses.amin(-1)", "loss=seen_losses[..., -1]", "test_laws"),
    Mutant("core/local_training.py", "delta, state = self.compression(state, delta)", "delta, _ = self.compression(state, delta)", "test_compression"),
    Mutant("core/local_training.py", "-(-self.compression.bits(message[\"delta\"]) // 8)", "(self.compression.bits(message[\"delta\"]) // 8)", "test_compression"),
    Mutant("core/local_training.py", "return self._add(x, *self._inner.probe(x, step))", "return self._inner.probe(x, step)", "test_laws::test_probes_carry_the_penalty"),
    Mutant("core/local_training.py", "return loss + value.to(loss.dtype), gradient + slope", "return loss, gradient + slope", "test_oracle_methods::test_method[prox-sps-5-None-stacked]"),
    Mutant(
        "core/local_training.py",
        "for part in self.parts:\n            after = part.absorb(after, mean, participation)\n        x, after = self.server(after, x, mean)",
        "x, after = self.server(after, x, mean)\n        for part in self.parts:\n            after = part.absorb(after, mean, participation)",
        "test_oracle_methods::test_method[amsgrad-5-None-stacked]",
    ),
    # rules
    Mutant("rules/plateau.py", "(line[\"line_rounds\"] - 2)", "(line[\"line_rounds\"] - 1)", "test_beyond"),
    Mutant("rules/plateau.py", "slope - self.patience * error > -r", "slope > -r", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "slope + self.patience * error < -r", "slope < -r", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "is_slow & (factor > 1)", "is_slow & (factor > 9)", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "clamp(max=AT_ONCE)", "clamp(max=99.0)", "test_beyond"),
    Mutant("rules/plateau.py", "(1 - 1 / self.memory)", "(1 - 1 / self.least_rounds)", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "2 * state[\"next_look\"]", "1 + state[\"next_look\"]", "test_beyond"),
    Mutant("rules/plateau.py", "falls | (rests & agree),", "falls,", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "rests & oppose,", "rests,", "test_beyond"),
    Mutant("rules/plateau.py", " | (rounds >= self.least_rest)", "", "test_beyond"),
    Mutant("rules/plateau.py", "rests | eases | agree) &", "rests | eases) &", "test_beyond"),
    Mutant("rules/plateau.py", "(rounds >= self.unclear_rounds)", "(rounds >= self.least_rest)", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "gone.clamp(min=1 / AT_ONCE) * factor", "factor / 2", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", ".masked_fill(first == 0, 1.0)", "", "test_beyond"),
    Mutant("rules/plateau.py", "(started == 1) | ", "", "test_beyond"),
    Mutant("rules/plateau.py", "state[\"started\"].masked_fill(", "(0 * state[\"started\"]).masked_fill(", "test_beyond"),
    Mutant("rules/plateau.py", "last / best)).clamp(min=LEAST)", "last / best))", "test_beyond"),
    Mutant("rules/plateau.py", "clamp(max=self.largest)", "clamp(max=9.0)", "test_beyond"),
    Mutant("rules/plateau.py", "gap if seen.step == 0 else state[\"first_gap\"]", "gap", "test_oracle_methods"),
    Mutant("rules/plateau.py", "is_decided = falls | rests | eases", "is_decided = falls | eases", "test_oracle_methods"),
    Mutant("rules/plateau.py", "torch.minimum(factor, last / best)", "factor", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "torch.where(downs, 1.0, torch.where(ups", "torch.where(downs, self.growth, torch.where(ups", "test_beyond"),
    Mutant("rules/plateau.py", "(kept[\"kept_gap\"] == 0) | ", "", "test_beyond"),
    Mutant("rules/plateau.py", "torch.minimum(moved, state[\"risen_factor\"])", "moved", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "loss - self.patience * (spread + state[\"risen_spread\"]).sqrt() >", "loss >", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "torch.where(moved > factor, value", "torch.where(moved >= factor, value", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "AT_ONCE * last)", "99 * last)", "test_beyond"),
    Mutant("rules/plateau.py", "(after < self.holds * before) | ", "", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", ' | (mean["gap"] > mean["first_gap"])', "", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", 'return state["stepsize"].isinf() &', 'return', "test_beyond"),
    Mutant("rules/plateau.py", ' & (state["share"] > self.initial) & is_wrong', ' & is_wrong', "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "times(kept, mean", "times(0 * kept + 1, mean", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "torch.where(is_single(mean), self.initial, state", "torch.where(is_single(mean), self.bold, state", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", "LOST = 2.0", "LOST = 3.0", "test_oracle_methods; test_beyond"),
    Mutant("rules/plateau.py", " & ~is_single(mean)\n        is_lost", "\n        is_lost", "test_beyond"),
    Mutant("rules/plateau.py", "fails | ~state[\"stepsize\"].isinf()", "fails", "test_beyond"),
    Mutant("rules/plateau.py", "is_second & (state[\"first_loss\"] > 0) &", "is_second &", "test_beyond"),
    Mutant("core/local_training.py", "server_init(start).items()} | learnt", "server_init(start).items()}", "test_oracle_methods; test_beyond"),
    Mutant("core/local_training.py", "return either(is_lost, start, x), after |", "return x, after |", "test_oracle_methods; test_beyond"),
    Mutant("core/local_training.py", "for name in first}\n", "for name in learnt}\n", "test_oracle_methods; test_beyond"),
    Mutant("core/local_training.py", "mean = part.accept(state, mean)", "part.accept(state, mean)", "test_oracle_methods"),
    Mutant("flower/config.py", "built.privately if self.clip_norm else built", "built", "test_privacy"),
    Mutant("paper/execute.py", "job.note(replace(winner, on=(column,)), tuned.pick)", "pass", "test_paper"),
    Mutant("rules/plateau.py", " | (growth == 1), 0.0)", ", 0.0)", "test_beyond"),
    Mutant("rules/plateau.py", "(state[\"recent_loss\"] + mean[\"first_gap\"]) / 2", "mean[\"first_gap\"]", "test_oracle_methods; test_beyond"),
    Mutant("rules/common_stepsize.py", "shared.isinf(), self.first_share(seen) * ratio", "shared.isinf(), ratio", "test_oracle_methods; test_beyond"),
    Mutant("rules/common_stepsize.py", "self.initial * wanted, state", "wanted, state", "test_oracle_methods; test_beyond"),
    Mutant("rules/adasps.py", "share.sqrt()", "share", "test_oracle_methods"),
    Mutant("rules/adasps.py", "state[\"gap_sum\"] == 0, gap", "state[\"gap_sum\"] >= 0, gap", "test_oracle_methods"),
    Mutant("rules/diagonal.py", "torch.minimum(mean[\"delta_norm_sq\"], self.most * norm_sq(delta))", "mean[\"delta_norm_sq\"]", "test_oracle_methods; test_guarantee"),
    Mutant("rules/diagonal.py", "1 - along(self.momentum)) * delta", "1) * delta", "test_oracle_methods"),
    Mutant("paper/pages/beyond.py", "(loss_ratio(records, cell) <= AS_GOOD) |", "(loss_ratio(records, cell) <= 9) |", "test_beyond"),
    Mutant("paper/pages/beyond.py", "accuracy_lead(records, cell) >= 0", "accuracy_lead(records, cell) > 0", "test_beyond"),
    Mutant("paper/pages/beyond.py", "if name not in names", "if name", "test_beyond"),
    Mutant("paper/pages/beyond.py", "float(reached.min()) if len(reached)", "float(reached.max()) if len(reached)", "test_beyond"),
    Mutant("rules/polyak.py", "torch.exp2(seen.fraction)", "torch.exp(seen.fraction)", "test_stepsize"),
    Mutant("rules/polyak.py", "torch.where(gamma > 0, gamma * growth, cap)", "gamma * growth", "test_stepsize"),
    Mutant("rules/polyak.py", "grown.clamp(max=torch.finfo(cap.dtype).max)", "grown", "test_stepsize"),
    Mutant("rules/polyak.py", 'torch.minimum(state["minimum"], ratio)', "ratio", "test_stepsize"),
    Mutant("rules/polyak.py", "still = gap <= 0", "still = gap < 0", "test_stepsize"),
    Mutant("rules/polyak.py", "torch.as_tensor(t + 1, dtype", "torch.as_tensor(t + 2, dtype", "test_stepsize"),
    Mutant("rules/polyak.py", "gap = self.gap(seen).clamp(min=0)", "gap = self.gap(seen)", "test_stepsize"),
    Mutant("rules/polyak.py", ".masked_fill(size == torch.inf, torch.nan)", "", "test_training"),
    Mutant("model/models.py", "images[..., 1::2, :])", "images[..., :-1:2, :])", "test_network"),
    Mutant("rules/polyak.py", "loss.device).take(seen.client)", "loss.device)[0]", "test_stepsize"),
    Mutant("rules/global_stepsize.py", "(self.local.scale * size)", "size", "test_stepsize"),
    Mutant("rules/global_stepsize.py", "stepsize, _ = self.rule.local(", "stepsize, state = self.rule.local(", "test_stepsize; test_oracle::test_whole_data[FedSPSGlobal-a paper-zero]"),
    Mutant("rules/global_stepsize.py", 'torch.minimum(ratio, mean["local_cap"])', "ratio", "test_stepsize"),
    Mutant("rules/stepsize.py", "self.gamma * moved / (2 * turned)", "self.gamma * moved / turned", "test_oracle_methods::test_method[delta-set-5-None-stacked]"),
    Mutant("rules/stepsize.py", '"last_eta": eta, "theta": theta}', '"last_eta": eta}', "test_oracle_methods::test_method[delta-set-5-None-stacked]"),
    Mutant("rules/adaptive_server.py", "torch.sign(v - square)", "torch.sign(square - v)", "test_oracle_methods::test_method[yogi-5-None-stacked]"),
    Mutant("rules/adaptive_server.py", 'torch.maximum(state["vhat"], v)', "v", "test_oracle_methods::test_method[ams-set-5-None-stacked]"),
    Mutant("rules/adaptive_server.py", "vhat = vhat.clamp(min=eps)", "pass", "test_oracle_methods::test_method[ams-set-5-None-stacked]"),
    Mutant("rules/adaptive_server.py", 'state = state | {"rounds": rounds}', "pass", "test_oracle_methods::test_method[ams-bias-5-None-stacked]"),
    Mutant("rules/server.py", "+ self.eps))).clamp(min=1)", "+ self.eps)))", "test_oracle_methods::test_method[exp-set-5-None-stacked]"),
    Mutant("rules/server.py", "torch.where(total > 0, 1 / total, 0.0)", "1 / total", "test_oracle::test_zero_gradients_and_zero_gaps"),
    Mutant("rules/control_variates.py", 'participation * mean["control_change"]', 'mean["control_change"]', "test_oracle_methods::test_method[scaffold-5-3-stacked]"),
    Mutant("rules/control_variates.py", "delta / (seen.steps * along(self.stepsize))", "delta / along(self.stepsize)", "test_oracle_methods::test_method[scaffold-5-None-stacked]"),
    Mutant("rules/local_adaptive.py", "(seen.step + 1) * along(self.eps) ** 2", "seen.step * along(self.eps) ** 2", "test_oracle_methods::test_method[adaalter-5-None-stacked]"),
    Mutant("rules/local_adaptive.py", 'torch.maximum(mean["local_v"], state["vhat"])', 'mean["local_v"]', "test_oracle_methods::test_method[amsgrad-5-None-stacked]"),
    Mutant("rules/mime.py", "whole_data: ClassVar[bool] = True", "whole_data: ClassVar[bool] = False", "test_oracle_methods::test_mime_corrects_on_the_same_batch"),
    Mutant("rules/mime.py", "seen.probe(seen.start)", "seen.probe(seen.x)", "test_oracle_methods::test_method[mime-5-None-stacked]"),
    Mutant("rules/output.py", "(self.power + 1) / (round + self.power)", "(self.power + 1) / (round + self.power + 1)", "test_doctests"),
    Mutant("rules/output.py", "x if round == 1 else", "x if round == 0 else", "test_oracle_methods::test_method[last-two-5-None-stacked]"),
    Mutant("rules/compression.py", "torch.where(v < 0, -size, size)", "torch.where(v <= 0, -size, size)", "test_compression"),
    Mutant("rules/aggregation.py", "max(1, math.ceil(share * n - 1e-9))", "math.floor(share * n + 1e-9)", "test_robust"),
    Mutant("rules/aggregation.py", "ordered[(n - 1) // 2]", "ordered[n // 2 - 1]", "test_robust"),
    Mutant("rules/aggregation.py", ".clamp(max=1.0), v)", ", v)", "test_robust"),
    # methods
    Mutant("methods/fedsps_normalized.py", "lower=lower, smoothing=smoothing, reset=reset", "lower=lower", "test_oracle::test_batches_and_client_sampling[FedSPSNormalized-paper-uniform]"),
    Mutant("methods/feddecsps.py", ", reset=reset)", ")", "test_oracle::test_batches_and_client_sampling[FedDecSPS-True-uniform]"),
    Mutant("methods/fedams.py", "option=option, bias_correction=bias_correction", "option=option", "test_oracle_methods::test_method[ams-bias-5-None-stacked]"),
    Mutant("methods/notation.py", "if slot in chosen:", "if False:", "test_catalogue"),
    Mutant("methods/notation.py", "given = {key: _as_default(value, known[key]) for key, value in given.items()}", "pass", "test_catalogue; test_spec"),
    # model
    Mutant("model/network.py", ".mean(-1), after", ".sum(-1), after", "test_network"),
    Mutant("model/network.py", "targets.ndim == leading - shared + 1 and not masked", "targets.ndim == leading - shared + 1", "test_network"),
    Mutant("model/network.py", "(targets != IGNORED).sum().clamp(min=1)", "(targets != IGNORED).sum()", "test_network"),
    Mutant("model/network.py", ".to(outputs.dtype).where(counted, torch.nan)", ".to(outputs.dtype)", "test_network"),
    Mutant("model/network.py", "{name: value.clone() for name, value in buffers.items()}", "dict(buffers)", "test_network"),
    Mutant("model/network.py", 'own = vmap(function, randomness="different")', 'own = vmap(function, randomness="same")', "test_network"),
    Mutant("model/network.py", "sum(kept.values()) // len(inputs)", "sum(kept.values())", "test_network"),
    Mutant("model/network.py", "counted.max() < outputs.shape[1]", "counted.max() <= outputs.shape[1]", "test_training"),
    Mutant("model/network.py", "buffer.copy_(buffers[name])", "pass", "test_network"),
    Mutant("model/logistic.py", "slope.div_(targets.shape[-1])", "slope.div_(targets.shape[0])", "test_network"),
    # engine
    Mutant("engine/batches.py", ' and not exchange.whole_data:', ":", "test_engines::test_full_gradients_are_of_the_images_as_they_are"),
    Mutant("engine/batches.py", "iteration=round * plan.local_steps", "iteration=round", "test_oracle::test_batches_and_client_sampling[FedDecSPS-False-uniform]"),
    Mutant("engine/batches.py", "loss, gradient, _ = self._evaluate(x, step)", "loss, gradient, self.buffers = self._evaluate(x, step)", "test_network"),
    Mutant("engine/batches.py", "losses.append(share * loss)", "losses.append(loss / len(inputs))", "test_engines::test_a_batch_that_does_not_fit_into_memory_is_taken_in_pieces"),
    Mutant("engine/setup.py", "counts / counts.sum()", "counts / counts.sum() if len(clients) > 3 else np.full(len(clients), 1 / len(clients))", "test_oracle::test_batches_and_client_sampling[FedAvg--samples]"),
    Mutant("engine/setup.py", "1 if size is None else -(-batch // size)", "1 if size is None else max(1, batch // size)", "test_oracle_methods::test_full_gradients_are_counted_in_mini_batches"),
    Mutant("engine/setup.py", "not self.network.is_plain_mean or self.network.buffers or self", "not self.network.is_plain_mean or self", "test_engines::test_modules_of_users"),
    Mutant("engine/setup.py", "self.network.buffers or self.data.ignored is not None", "self.network.buffers", "test_network::test_masked_targets_are_never_taken_in_pieces"),
    Mutant("engine/answer.py", "streams.torch_seed(setup.plan.seed, exchange.action, round, client)", "streams.torch_seed(0, exchange.action, round, client)", "test_network"),
    Mutant("engine/answer.py", "streams.torch_seed(setup.plan.seed, exchange.action, round, client)", "streams.torch_seed(setup.plan.seed, exchange.action, 0, client)", "test_network"),
    Mutant("engine/stacked.py", "streams.torch_seed(setup.plan.seed, exchange.action, state.round, int(numbers[0]))", "streams.torch_seed(0, exchange.action, state.round, int(numbers[0]))", "test_network"),
    Mutant("engine/stacked.py", "bytes_up += bytes_of(work.buffers.values())", "pass", "test_engines::test_modules_of_users"),
    Mutant("engine/round.py", "len(collected.clients) / setup.data.clients", "len(collected.clients) / len(cohort)", "test_oracle_methods::test_method[scaffold-5-3-stacked]"),
    Mutant("engine/round.py", "gradients=sum(collected.gradients for collected in answers)", "gradients=answers[-1].gradients", "test_training"),
    Mutant("engine/round.py", "*received.values(), *state.buffers.values()]", "*received.values()]", "test_training; test_network"),
    Mutant("engine/session.py", "self.state = after if sound else self.state", "self.state = after", "test_training"),
    Mutant("engine/session.py", " and (done.trace is None or bool(done.trace.losses.isfinite().all()))", "", "test_training"),
    Mutant("engine/session.py", 'self.rows[-1]["train_loss"] <= stop_at_loss', 'self.rows[-1]["train_loss"] < stop_at_loss', "test_training"),
    Mutant("engine/session.py", "return state.result, state.result_buffers", "return state.x, state.result_buffers", "test_training"),
    Mutant("core/local_training.py", "delta[..., place] = 0", "pass", "test_local_batch_norm"),
    Mutant("flower/client.py", "self.policy.check_table()", "pass", "test_flower_table"),
    Mutant("flower/table.py", "total**2 > squares * count * (1 + 1e-6) + 1e-6", "False", "test_flower_table"),
    Mutant("core/local_training.py", "state = state | {name: y[..., place]}", "pass", "test_local_batch_norm"),
    Mutant("engine/batches.py", "x, work.buffers = setup.own_layers.into(x, work.buffers, layers_of(state))", "pass", "test_local_batch_norm"),
    Mutant("engine/session.py", "**buffers, **own}", "**buffers}", "test_local_batch_norm"),
    Mutant("flower/client.py", "x, buffers = self.setup.own_layers.into(x, buffers, layers)", "pass", "test_local_batch_norm"),
    Mutant("engine/session.py", "tolerance = 10 * torch", "tolerance = 0 * torch", "test_training"),
    Mutant("engine/session.py", "tolerance = 10 * torch", "tolerance = 1000 * torch", "test_training"),
    Mutant("engine/session.py", "* max(1.0, abs(loss.item()))", "", "test_training"),
    Mutant("engine/session.py", "last_save >= save_seconds", "last_save > 1e9", "test_training"),
    Mutant("engine/evaluate.py", "first, run = stop, []", "run = []", "test_network"),
    Mutant("engine/history.py", "mean_of_client.std(-1, correction=0)", "mean_of_client.std(-1)", "test_training"),
    Mutant("engine/trial.py", "data.sizes.max() + 1).argmin()", "0).argmax()", "test_network"),
    # runs
    Mutant("runs/checkpoint.py", "digest.update(setup.data.digest)", "pass", "test_training"),
    Mutant("runs/checkpoint.py", "digest.update(network.description.encode())", "pass", "test_training"),
    Mutant("runs/checkpoint.py", "digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)", "pass", "test_training"),
    Mutant("runs/checkpoint.py", "if name not in LATER and", "if name not in (*LATER, 'seed') and", "test_plan"),
    Mutant("runs/checkpoint.py", "if key:\n            groups[group][key] = tensor", "if key and group != \"output\":\n            groups[group][key] = tensor", "test_training"),
    Mutant("runs/run.py", "            forget(folder)\n        folder.mkdir", "            pass\n        folder.mkdir", "test_spec"),
    Mutant("runs/run.py", 'if result.data["ended"] != "callback":', 'if result.data["ended"] == "rounds":', "test_spec::test_a_run_that_diverged_is_finished"),
    Mutant("data/clients.py", "if self.names is None or self.labels == clients.labels:", "if True:", "test_inputs::test_held_out_data_go_by_the_names_of_the_clients"),
    Mutant("runs/result.py", "if self.kept_round is not None:", "if False:", "test_scores::test_final_numbers_are_those_of_the_model_that_was_kept"),
    Mutant("engine/metrics.py", "return outputs - 0.5", "return outputs", "test_scores::test_a_yes_or_no_is_scored_where_its_loss_draws_the_line"),
    Mutant("runs/result.py", "value is not None and np.isfinite(value)", "value is not None", "test_cli::test_json_is_json_even_without_numbers; test_spec; test_cli"),
    Mutant("runs/tuning.py", '["round"] > 0.9 * table', '["round"] >= 0.9 * table', "test_tune"),
    Mutant("runs/tune.py", "with only_one(Path(runs), busy, CLAIMS, SILENCE):", "with nullcontext():", "test_tune::test_trials_are_taken_by_one_process_at_a_time"),
    Mutant("runs/tune.py", "not _params(trial) or _params(trial) in counted", "not _params(trial)", "test_tune::test_points_that_two_machines_put_in_line_are_run_once"),
    Mutant("runs/tune.py", "not _params(trial) or _params(trial) in counted", "_params(trial) in counted", "test_tune::test_nothing_is_drawn_when_another_machine_was_quicker"),
    Mutant("runs/tune.py", "if owner not in heard or heard[owner][0] != beat", "if owner not in heard", "test_tune::test_the_last_point_of_another_machine_is_waited_for"),
    Mutant("runs/tune.py", "return is_open or bool(missing)", "return is_open", "test_tune::test_what_another_machine_gives_back_at_the_end_is_run"),
    Mutant("runs/tune.py", "        with _beating(study), workers", "        with workers", "test_tune::test_a_search_is_heard_of_while_it_trains"),
    Mutant("runs/tune.py", "                _give_back(study)\n", "", "test_tune::test_a_search_that_fails_gives_its_trials_back"),
    Mutant("runs/tune.py", "if outcome is None else None, skip_if_finished=True", "if outcome is None else None", "test_tune::test_a_machine_that_was_asleep_leaves_its_trials_to_those_that_took_them_over"),
    Mutant("runs/tune.py", "seed=TUNING_SEED + trial.number", "seed=TUNING_SEED", "test_tune::test_two_machines_draw_different_points_and_no_more_than_asked_for"),
    Mutant("runs/tune.py", "-(-waiting // (4 * jobs)) if is_shared else -(-search.size // jobs)", "-(-search.size // jobs)", "test_tune::test_machines_share_a_grid_in_portions"),
    Mutant("runs/storage.py", "    if parsed.password is not None and url.count(\"@\") > 1:\n        raise problem\n", "", "test_tune::test_a_storage_that_cannot_be_opened"),
    Mutant("runs/storage.py", "raise problem from None", "raise", "test_tune::test_a_storage_that_cannot_be_opened"),
    Mutant("runs/storage.py", "hide_password=True", "hide_password=False", "test_tune::test_a_storage_that_cannot_be_opened"),
    Mutant("runs/tune.py", "        return set()  # this machine was asleep", "        raise  # this machine was asleep", "test_tune::test_halving_goes_on_where_trials_were_taken_over"),
    Mutant("runs/tune.py", "return now - heard[owner][1] < SILENCE", "return False", "test_tune::test_the_last_point_of_another_machine_is_waited_for"),
    Mutant("runs/tune.py", "if host == platform.node() and not _is_process(int(pid))", "if False", "test_tune::test_a_process_of_this_machine_is_dead_when_it_is_gone"),
    Mutant("runs/tune.py", "return len(counted) >= search.trials", "return False", "test_tune::test_two_machines_draw_different_points_and_no_more_than_asked_for"),
    Mutant("runs/storage.py", '"postgresql": "pip install', '"postgres": "pip install', "test_tune::test_a_missing_driver_is_named"),
    Mutant("runs/tune.py", '**({"seed": TUNING_SEED} | settings)', "**settings", "test_tune"),
    Mutant("runs/tuning.py", 'np.isfinite(scores) & ~self.table["dropped"].to_numpy(bool)', "np.isfinite(scores)", "test_tune"),
    # report
    Mutant("runs/failures.py", "if is_common(specs[numbers[0]], error):", "if False:", "test_failures::test_what_would_refuse_all_is_raised_at_once"),
    Mutant("runs/failures.py", "if len(numbers) > 1:", "if False:", "test_failures::test_one_of_a_sweep_is_found_and_the_others_stay_together"),
    Mutant("runs/tune.py", "study.set_user_attr(FAILED + digest, None)", "pass", "test_failures::test_a_search_whose_retry_succeeds_has_no_failures"),
    Mutant("runs/train.py", "nullcontext() if saver is None else saver.held()", "nullcontext()", "test_reliability"),
    Mutant("core/files.py", "(errno.ENOSPC, errno.EDQUOT)", "(errno.EDQUOT,)", "test_reliability"),
    Mutant("report/comparison.py", "(TARGET_FACTOR * min(finite) if", "(min(finite) if", "test_comparison"),
    # sweeps and workers
    Mutant("core/stacking.py", "return column.unsqueeze(-1)", "return column", "test_sweep"),
    Mutant("core/stacking.py", 'if is_dataclass(first) and not vars(type(first)).get("in_sweep", False):', "if False:", "test_sweep"),
    Mutant("core/algorithm.py", 'vars(type(part)).get("in_span", False)', 'type(part).in_span', "test_sweep"),
    Mutant("model/span.py", "product if first == second else 2 * product", "product", "test_sweep"),
    Mutant("model/span.py", "parts[step] - part if step in parts else -part", "parts[step] - part if step in parts else part", "test_sweep"),
    Mutant("model/span.py", "self.is_point and not other.is_point", "self.is_point", "test_sweep"),
    Mutant("engine/sweep.py", "states[name][places[..., None], index] = value.unflatten(1, index.shape)", "pass", "test_sweep"),
    Mutant("engine/sweep.py", "repeat_interleave(self.positions.shape[1], dim=1)", "repeat(1, self.positions.shape[1])", "test_sweep"),
    Mutant("engine/sweep.py", "shares = shares.gather(1,", "shares = shares.gather(0,", "test_sweep"),
    Mutant("engine/sweep.py", "**costs[self._seeds[number]]", "**costs[0]", "test_sweep"),
    Mutant("engine/sweep.py", "kept[places[..., None], positions] = found", "kept[places[..., None], positions.flip(1)] = found", "test_sweep"),
    Mutant("engine/sweep.py", "self.rows = [list(own) for own in rows]", "pass", "test_sweep"),
    Mutant("engine/sweep.py", "output=stacked([state.output for state in states])", "output=self.state.output", "test_sweep"),
    Mutant("engine/evaluate.py", "np.argsort(other.rows)[np.argsort(np.argsort(first.rows))]", "np.argsort(other.rows)[np.argsort(first.rows)]", "test_sweep"),
    Mutant("engine/evaluate.py", "split.targets[order], owners[order]", "split.targets, owners[order]", "test_sweep"),
    Mutant("model/span.py", "self._logits = product.permute(3, 0, 4, 1, 2, 5)", "self._logits = product.permute(3, 4, 0, 1, 2, 5)", "test_sweep"),
    Mutant("runs/parallel.py", "for spec in specs if fresh else ():", "for spec in ():", "test_sweep"),
    Mutant("runs/sweep.py", "if come[number] == come[left[0]]", "", "test_sweep"),
    Mutant("runs/sweep.py", "if len(seeds) == most_seeds or", "if", "test_sweep"),
    Mutant("core/streams.py", "taken[most if draw in taken else draw] = None", "taken[draw] = None", "test_streams"),
    Mutant("engine/sweep.py", "self._end(number, before, place, diverged=True)", "self._end(number, after, place, diverged=True)", "test_sweep"),
    Mutant("engine/sweep.py", "self._leave(unwanted, dropped=True)", "pass", "test_sweep"),
    Mutant("engine/evaluate.py", "(logits - logits.gather(-1, truth[..., None])).logsumexp(-1)", "logits.logsumexp(-1)", "test_sweep"),
    Mutant("engine/distributed.py", "torch.stack([part.sum() for part", "torch.stack([part.mean() for part", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "(one := next(values)).expand(count, *one.shape)", "(one := next(values)).expand(1, *one.shape)", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "value.index_copy_(0, index, next(values)[:count])", "next(values)", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "costs += next(values).cpu()", "costs = next(values).cpu()", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "server=blank.server | received", "server=blank.server", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "x=x, buffers=buffers, server", "x=x, server", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "name: value.index_copy(0, index, some[: len(own)])", "name: value", "test_ranks::test_two_and_three_ranks_compute_what_one_process_does"),
    Mutant("engine/distributed.py", "        if other:\n", "        if False:\n", "test_ranks::test_a_rank_that_was_asked_something_else_is_refused"),
    Mutant("engine/ranks.py", "error.speaks = set(range(self.rank)) <= set(gone)", "error.speaks = True", "test_ranks::test_the_first_rank_that_is_left_speaks_for_rank_0"),
    Mutant("engine/ranks.py", "if rank not in left and silence[rank] > 4 * BEAT", "if silence[rank] > 4 * BEAT", "test_ranks::test_a_rank_that_only_follows_is_not_the_one_that_is_gone"),
    Mutant("engine/ranks.py", "atexit.register(_end_now)", "pass", "test_ranks::test_a_rank_that_falls_silent_is_gone_and_one_that_beats_is_not"),
    Mutant("engine/ranks.py", "share_cores(_number(\"LOCAL_WORLD_SIZE\", \"1\"))", "pass", "test_ranks::test_ranks_of_one_machine_share_its_cores"),
    Mutant("cli/main.py", "if _has_ranks() and command != \"train\":", "if False:", "test_ranks::test_rank_0_speaks_for_all"),
    Mutant("cli/main.py", "if not _follows():", "if True:", "test_ranks::test_rank_0_speaks_for_all"),
    Mutant("engine/session.py", "except (KeyboardInterrupt, RankError) as error:", "except KeyboardInterrupt as error:", "test_ranks::test_a_rank_that_fails_is_named_and_the_run_is_saved"),
    Mutant("engine/workers.py", "torch.default_generator.set_state(state)", "pass", "test_workers"),
    Mutant("engine/workers.py", "return max(1, own // _processes)", "return own", "test_workers"),
    Mutant("model/network.py", "self._threads = threading.local()", "self._threads = type('Shared', (), {})()", "test_workers"),
    Mutant("runs/run.py", 'exact and "sweep" in', 'exact and "swept" in', "test_sweep"),
    Mutant("runs/run.py", 'summary.get("parts", spec.named.parts)', 'spec.named.parts', "test_spec"),
    # flower
    Mutant("flower/check.py", "0 < limit * middle < norm", "False", "test_flower_hostile::test_far_above_the_lower_median"),
    Mutant("flower/check.py", 'interpolation="lower"', 'interpolation="higher"', "test_flower_hostile::test_far_above_the_lower_median"),
    Mutant("flower/wire.py", "str(text)[:LONGEST]", "str(text)", "test_flower_hostile::test_a_client_cannot_write_lines_of_its_own_nor_fill_the_history"),
    Mutant("flower/courier.py", "if left < 0:", "if False:", "test_flower_hostile::test_an_answer_that_is_too_large_is_not_read"),
    Mutant("flower/courier.py", "came.metadata.src_node_id == node", "True", "test_flower_hostile::test_an_answer_in_the_place_of_another_node_is_refused"),
    Mutant("flower/secagg.py", "abs(known - limit / 2) > tolerance", "False", "test_secagg_hostile::test_what_the_sum_says_of_itself"),
    Mutant("flower/protocol.py", "2 * times > len(sent) - 1", "times", "test_secagg_hostile::test_one_client_cannot_have_another_refused"),
    Mutant("flower/membership.py", "self.pins.get(node) != partition", "False", "test_flower_hostile::test_a_node_that_claims_anothers_partition_is_refused_and_the_honest_one_is_not"),
    Mutant("flower/policy.py", "if epsilon > self.maximum_epsilon:", "if False:", "test_policy::test_the_budget_is_kept_over_runs"),
    Mutant("flower/policy.py", "if clients < self.minimum_cohort:", "if False:", "test_policy::test_a_sum_over_too_few_is_refused_by_the_sites"),
    Mutant("deploy/gateway.py", "or not PATH.fullmatch(path)", "", "test_federation_gateway"),
    Mutant("deploy/gateway.py", 'scope["method"] != "POST"', "False", "test_federation_gateway"),
    Mutant("deploy/gateway.py", "if len(body) > MOST:", "if False:", "test_federation_gateway"),
    Mutant("flower/check.py", "answer.trace.gap.clamp(-1, 1)", "answer.trace.gap.nan_to_num().clamp(-1, 1)", "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", 'for name in ("losses", "stepsizes")]', 'for name in ("losses",)]', "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", "got.shape != value.shape or got.dtype != value.dtype", "got.shape != value.shape", "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", 'if not 0 <= scores.get("test_accuracy", 0) <= 1:', "if False:", "test_flower_faults::test_bad_scores_are_left_out"),
    Mutant("flower/transport.py", "2 * len(some) >= len(self.sound)", "2 * len(some) > len(self.sound)", "test_flower_faults::test_exactly_half_of_the_answers_are_enough_for_divergence"),
    Mutant("flower/transport.py", "2 * len(some) >= len(self.sound) + self.unused", "2 * len(some) >= len(self.sound)", "test_secagg::test_one_infinite_client_and_two_that_are_gone_are_no_divergence"),
    Mutant("flower/transport.py", "self.sound.clear()", "pass", "test_flower_faults::test_answers_of_two_attempts_are_not_added_up"),
    Mutant("flower/plain.py", "(lambda name: no_mean) if diverged else self.mean", "self.mean", "test_flower_faults::test_a_median_does_not_hide_divergence"),
    Mutant("flower/plain.py", "2 * len(beyond) < len(scores)", "2 * len(beyond) <= len(scores)", "test_flower_faults::test_an_infinite_loss_is_told"),
    Mutant("flower/plain.py", "float(counts @ [values[name] for values in held] / counts.sum())", "float(np.mean([values[name] for values in held]))", "test_flower::test_scores_of_the_clients_own_tests_are_over_all_their_samples"),
    Mutant("flower/collect.py", "since[torch.from_numpy(clients)] = state.round", "since[torch.from_numpy(clients)] = state.round - 1", "test_flower::test_states_are_kept_for_three_rounds_and_by_run"),
    Mutant("flower/collect.py", 'if exchange.action == "train" else state.ledger', "if True else state.ledger", "test_flower::test_only_training_counts_as_taking_part"),
    Mutant("flower/collect.py", "[audience] * (1 + config.retries)", "[audience] * max(1, config.retries)", "test_flower_faults::test_too_few_answers_repeat_the_round_then_stop"),
    Mutant("flower/collect.py", "np.setdiff1d(group, heard.refused)", "group", "test_flower_faults::test_a_repetition_leaves_out_a_client_that_diverged"),
    Mutant("flower/collect.py", "config.deadline if attempt else 0", "0", "test_flower_faults::test_a_repetition_waits_until_the_nodes_are_back"),
    Mutant("flower/collect.py", "or left <= len(heard.refused):", "or left < len(heard.refused):", "test_flower_faults::test_nobody_is_asked_again_once_half_have_diverged"),
    Mutant("flower/collect.py", 'int(state.ledger["counted"].max())', 'int(state.ledger["counted"].min())', "test_privacy"),
    Mutant("flower/server.py", "if (self.folder / SUMMARY).exists():\n            self.forget()", "pass", "test_flower::test_a_checkpoint_that_a_finished_run_left_is_none_to_go_on_from"),
    Mutant("flower/store.py", "not in (before, since, round):", "not in (before, round):", "test_flower::test_states_are_kept_for_three_rounds_and_by_run"),
    Mutant("flower/store.py", "not in (before, since, round):", "not in (since, round):", "test_flower::test_a_killed_server_goes_on_where_it_was"),
    Mutant("flower/store.py", "since is not None and", "False and", "test_flower::test_a_state_that_started_elsewhere_does_not_count"),
    Mutant("flower/client.py", "content.update({} if site is None else site.scores)", "pass", "test_flower_faults::test_scores_count_where_training_fails"),
    Mutant("flower/plain.py", "early.round == state.round:", "False:", "test_flower::test_scores_and_the_next_round_share_a_message"),
    Mutant("flower/plain.py", "tasks=2)", "tasks=1)", "test_flower::test_a_late_answer_leaves_no_trace"),
    Mutant("flower/client.py", "names = wire.OUTPUT if wire.OUTPUT[0] in content.array_records else wire.MODEL", "names = wire.MODEL", "test_flower::test_equals_the_stacked_engine"),
    Mutant("flower/store.py", 'if notes.get("token") != self.token or', "if", "test_flower::test_states_of_another_run_of_the_same_spec_do_not_count"),
    Mutant("flower/client.py", "size, held = 1, 0", "size, held = size, 0", "test_privacy"),
    Mutant("flower/client.py", "self.config.privacy.clip(done.message)", "done.message", "test_privacy"),
    Mutant("flower/membership.py", "if not 0 <= partition < partitions <= MOST", "if not 0 <= partition <= partitions <= MOST", "test_flower_faults::test_what_a_node_cannot_be_is_refused"),
    Mutant("flower/membership.py", "self.nodes.pop(partition, None)", "pass", "test_flower::test_a_late_answer_leaves_no_trace"),
    Mutant("flower/privacy.py", "self.multipliers[0] * self.clip_norm / len(values)", "self.multipliers[0] * self.clip_norm", "test_privacy"),
    Mutant("flower/privacy.py", "self.multipliers[0] * self.clip_norm / len(values)", "self.noise_multiplier * self.clip_norm / len(values)", "test_privacy::test_one_replaced_client_moves_what_is_released_by_two_over_z_at_the_most"),
    Mutant("flower/privacy.py", "math.sqrt(len(self.ranges) / SCALARS)", "math.sqrt(1 / SCALARS)", "test_privacy::test_one_replaced_client_moves_what_is_released_by_two_over_z_at_the_most"),
    Mutant("flower/privacy.py", "values.double().clamp(low, high)", "values.double()", "test_privacy::test_values_are_clipped_on_both_sides"),
    Mutant("flower/privacy.py", "noisy.clamp(low, high).to", "noisy.to", "test_privacy::test_values_are_clipped_on_both_sides"),
    Mutant("flower/check.py", "(value.dim() or sent not in ranges)", "value.dim()", "test_privacy::test_algorithms_that_send_more_are_refused"),
    Mutant("flower/secagg.py", "not low <= numbers[name] <= high", "False", "test_secagg::test_a_scalar_beyond_its_range_is_clipped_and_counted"),
    Mutant("flower/secagg.py", "DIGITS = 4 ", "DIGITS = 1 ", "test_secagg::test_the_mean_of_scalars_is_exact"),
    Mutant("flower/secagg.py", "dict(zip(names, broadcast, strict=True))", "{name: 0 * x.sum() for name in names}", "test_secagg::test_scalars_and_the_broadcast_travel_too"),
    Mutant("flower/secagg.py", "@ places / clients).clamp(0, 1)", "@ places / clients)", "test_secagg_hostile::test_no_digits_that_pass_give_a_mean_beyond_the_range"),
    Mutant("flower/privacy.py", "noise = dp.GaussianDpEvent(noise_multiplier / 2)", "noise = dp.GaussianDpEvent(noise_multiplier)", "test_privacy"),
    Mutant("flower/privacy.py", "compose(dp.GaussianDpEvent(noise_multiplier / 2)", "compose(dp.GaussianDpEvent(noise_multiplier)", "test_policy; test_privacy"),
    Mutant("flower/privacy.py", "len(counted), max(counted)", "len(counted), min(counted)", "test_privacy"),
    Mutant("flower/privacy.py", "and sum(counted) == rounds * cohort:", "and True:", "test_privacy"),
    Mutant("flower/secagg.py", "max(LEAST, -(-2 * cohort // 3))", "max(LEAST, 2 * cohort // 3)", "test_secagg::test_two_thirds_and_never_two"),
    Mutant("flower/secagg.py", "needed(len(audience) + len(heard.refused))", "needed(len(audience))", "test_secagg::test_a_repetition_without_a_diverged_client_needs_as_many_as_before"),
    Mutant("flower/secagg.py", "bytes_up=8 * (1 + len(asked.mean)) * len(clients)", "bytes_up=8 * len(asked.mean) * len(clients)", "test_secagg::test_equals_the_plain_mean"),
    Mutant("flower/secagg.py", "(delta.abs() > limit).any()", "(delta > limit).any()", "test_secagg::test_a_value_beyond_the_range_is_told_on_either_side"),
    Mutant("flower/secagg.py", "check_bound(round + 1, done.trace.as_cohort, np.array([client]))", "pass", "test_secagg::test_losses_below_their_bound_stop_the_run_if_half_of_the_clients_say_so"),
    Mutant("optim.py", "if self._awaits_step:", "if False:", "test_optim_loops::test_a_loss_may_be_set_again_once_the_gradients_are_cleared"),
    Mutant("optim.py", "if not self._cleared and any(", "if any(", "test_optim_loops::test_a_closure_that_does_not_clear_is_refused_and_one_that_does_is_not"),
    Mutant("optim.py", "held, self._loss, self._awaits_step = self._loss, None, False", "held = self._loss", "test_optim_loops::test_a_plain_step_uses_the_loss_once"),
    Mutant("optim.py", "if not math.isfinite(number):", "if math.isinf(number):", "test_optim_loops::test_what_is_not_a_number_raises_before_it_spreads"),
    Mutant("flower/protocol.py", "return [] if self.silent else list(replies.values())", "return list(replies.values())", "test_secagg::test_goes_on_without_a_client_that_is_silent_from_a_stage_on"),
    # statistics and the report
    Mutant("report/statistics.py", "paired(own, values[best], test)", "paired(own, values[best])", "test_comparison::test_each_is_tested_against_the_best_of_its_measure"),
    Mutant("report/statistics.py", "(len(order) - place) * values[name]", "len(order) * values[name]", "test_comparison::test_each_is_tested_against_the_best_of_its_measure; test_doctests::test_examples_run[report.statistics]"),
    Mutant("report/statistics.py", "least = max(least, min(1.0, ", "least = max(0.0, min(1.0, ", "test_doctests::test_examples_run[report.statistics]"),
    Mutant("report/statistics.py", "if len(one) != len(other) or len(one) < 2:", "if len(one) != len(other):", "test_doctests::test_examples_run[report.statistics]"),
    Mutant("report/statistics.py", "if not differences.any():", "if False:", "test_doctests::test_examples_run[report.statistics]"),
    Mutant("report/comparison.py", "np.std(values, ddof=1)", "np.std(values)", "test_comparison::test_deviations_over_seeds_and_how_many_reach_the_target"),
    Mutant("report/comparison.py", '"reached": len(reached),', '"reached": len(seeds),', "test_comparison::test_deviations_over_seeds_and_how_many_reach_the_target"),
    Mutant("report/comparison.py", "best = min if is_better(metric, 0.0, 1.0) else max", "best = min", "test_comparison::test_each_is_tested_against_the_best_of_its_measure"),
    Mutant("report/comparison.py", '_p"] >= LEVEL)', '_p"] >= 1)', "test_comparison::test_a_table_for_a_paper"),
    Mutant("report/comparison.py", "if run.diverged_at is not None:", "if False:", "test_comparison::test_a_table_for_a_paper"),
    Mutant("report/figures.py", "run.result.spec.plan.seed == TUNING_SEED", "False", "test_report::test_trials_of_a_search_are_points_and_not_seeds"),
    Mutant("report/comparison.py", "own.index.is_unique and own.index.equals(seeds_of_best)", "True", "test_comparison::test_runs_of_other_seeds_are_no_pairs"),
    Mutant("report/figures.py", "if all(len(own) == 1 for own in starts.values()):", "if True:", "test_report::test_models_of_one_shape_and_other_losses_never_share_a_line"),
    Mutant("report/figures.py", "if all(len(own) == 1 for own in starts.values()):", "if False:", "test_report::test_seeds_share_a_line_whatever_else_goes_with_the_seed"),
    Mutant("runs/fingerprint.py", "shapes, _in_words(loss))", "shapes)", "test_report::test_models_of_one_shape_and_other_losses_never_share_a_line"),
    Mutant("runs/train.py", "given = [whole] if", "given = [data] if", "test_report::test_seeds_share_a_line_whatever_else_goes_with_the_seed"),
    Mutant("report/plot.py", "    _fit(figure, title)\n", "", "test_compare::test_nothing_of_a_figure_is_cut_off"),
    Mutant("report/figures.py", '"train_samples", "fingerprint")', '"train_samples")', "test_report::test_other_models_and_other_data_never_share_a_line"),
    Mutant("report/figures.py", 'any(other.files.get("algorithm", "")[:8] != code for other in alike)', "False", "test_report::test_versions_of_a_file_and_namesakes_are_lines_of_their_own"),
    Mutant("report/figures.py", "np.linspace(0, size - 1, min(size, most))", "np.arange(min(size, most))", "test_report::test_thin_keeps_the_ends_and_bounds_the_size"),
    Mutant("report/plot.py", "return Figure(figsize", "import matplotlib.pyplot\n\n    return matplotlib.pyplot.figure(figsize", "test_compare::test_a_figure_leaves_the_callers_pyplot_alone"),
    # theory
    Mutant("theory/bounds.py", "k.local_steps**2\n    rate", "k.smoothness * k.local_steps**2\n    rate", "test_paper_errors::test_its_strongly_convex_part_drops_it_too; test_theory::test_bounds_by_hand"),
    Mutant("theory/lower_bounds.py", "minimum(batch, model).value", "batch(x)[0].item()", "test_theory::test_a_lower_bound_above_what_a_batch_comes_down_to"),
    Mutant("theory/objective.py", "losses.topk(size, largest=False)", "losses.topk(size)", "test_theory::test_the_batch_that_is_looked_at_is_the_one_that_fits_best"),
    Mutant("theory/analyse.py", "if algorithm.with_parts(output=None) != Algorithm(stepsize=rule):", "if False:", "test_theory::test_theorems_are_said_of_the_algorithms_that_they_are_about"),
    Mutant("paper/pages/theory.py", "    kept=every_iteration,\n", "", "test_theory_page::test_judging_again_from_the_tables_changes_no_verdict"),
]  # fmt: skip


def copied(folder: str) -> Path:
    """The tree, without what is made from it."""
    return Path(shutil.copytree(ROOT, Path(folder, "tree"), ignore=LEFT_OUT))


def tested(tree: Path, *words: str) -> int:
    """Pytest's exit code over a tree, in a process of its own: 0 if all tests pass, 1 if one fails; -9 if it hangs."""
    process = FORKS.Process(target=_test, args=(tree, words))
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode or 0


def _test(tree: Path, words: tuple[str, ...]) -> None:
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")  # for the processes that tests start
    sys.path.insert(0, str(tree / "src"))
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())
    os._exit(pytest.main([*OPTIONS, *words]))


def places(tests: str) -> list[str]:
    """Tests by their short names, `test_flower; test_secagg::test_refusals`."""
    return [
        f"tests/{file}.py{colons}{name}"
        for file, colons, name in (one.strip().partition("::") for one in tests.split(";"))
    ]


def problem(mutant: Mutant) -> str | None:
    """Why a mutant cannot be made."""
    found = (ROOT / mutant.path).read_text(encoding="utf-8").count(mutant.old)
    missing = [place for place in places(mutant.tests) if not (ROOT / place.partition("::")[0]).is_file()]
    if found != 1:
        return f"its text is there {found} times"
    return f"there is no {missing[0]}" if missing else None


def outcome(mutant: Mutant, whole_suite: bool) -> str:
    """Killed, survived, or what pytest's exit code says instead."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(folder)
        file = tree / mutant.path
        file.write_text(file.read_text(encoding="utf-8").replace(mutant.old, mutant.new), encoding="utf-8")
        near = places(mutant.tests)
        code = tested(tree, *near)
        if code == 0 and whole_suite:
            code = tested(tree, *(f"--deselect={place}" for place in near))
    return {0: "survived", 1: "killed"}.get(code, f"pytest ended with {code}")


def run(mutants: Iterable[Mutant], jobs: int, whole_suite: bool) -> list[str]:
    """The outcome of each mutant, told as it comes."""

    def one(mutant: Mutant) -> str:
        began = time.monotonic()
        found = outcome(mutant, whole_suite)
        print(f"{found:9} {time.monotonic() - began:6.1f} s  {mutant.title}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", metavar="SUBSTRING", help="mutants whose file or text has it")
    options.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    options.add_argument("--near", action="store_true", help="the named tests alone, not the rest of the suite")
    given = options.parse_args()
    chosen = [mutant for mutant in MUTANTS if given.only in mutant.title]
    problems = [f"{why}: {mutant.title}" for mutant in MUTANTS if (why := problem(mutant)) is not None]
    if problems or not chosen:
        print("\n".join(problems or [f"no mutant has {given.only!r}"]))
        return 1
    FORKS.set_forkserver_preload(["__main__", *LIBRARIES])
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        near = dict.fromkeys(place for mutant in chosen for place in places(mutant.tests))
        if tested(copied(folder), *near):
            print("the tests fail without a mutant: make test says more")
            return 1
    found = run(chosen, given.jobs, not given.near)
    killed = found.count("killed")
    print(f"{killed} of {len(chosen)} mutants killed in {(time.monotonic() - began) / 60:.0f} minutes")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
