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
    Mutant("core/local_training.py", "else torch.minimum(least_gap, gap)", "else gap", "test_laws"),
    Mutant("core/local_training.py", "delta, state = self.compression(state, delta)", "delta, _ = self.compression(state, delta)", "test_compression"),
    Mutant("core/local_training.py", "-(-self.compression.bits(message[\"delta\"]) // 8)", "(self.compression.bits(message[\"delta\"]) // 8)", "test_compression"),
    Mutant("core/local_training.py", "return self._add(x, *self._inner.probe(x, step))", "return self._inner.probe(x, step)", "test_laws::test_probes_carry_the_penalty"),
    Mutant("core/local_training.py", "return loss + value.to(loss.dtype), gradient + slope", "return loss, gradient + slope", "test_oracle_methods::test_method[prox-sps-5-None-stacked]"),
    Mutant(
        "core/local_training.py",
        "for part in self.parts:\n            state = part.absorb(state, mean, participation)\n        return self.server(state, x, mean)",
        "x, state = self.server(state, x, mean)\n        for part in self.parts:\n            state = part.absorb(state, mean, participation)\n        return x, state",
        "test_oracle_methods::test_method[amsgrad-5-None-stacked]",
    ),
    # rules
    Mutant("rules/polyak.py", "torch.exp2(seen.fraction)", "torch.exp(seen.fraction)", "test_stepsize"),
    Mutant("rules/polyak.py", "torch.where(gamma > 0, gamma * growth, cap)", "gamma * growth", "test_stepsize"),
    Mutant("rules/polyak.py", "grown.clamp(max=torch.finfo(cap.dtype).max)", "grown", "test_stepsize"),
    Mutant("rules/polyak.py", 'torch.minimum(state["minimum"], ratio)', "ratio", "test_stepsize"),
    Mutant("rules/polyak.py", "still = gap <= 0", "still = gap < 0", "test_stepsize"),
    Mutant("rules/polyak.py", "torch.as_tensor(t + 1, dtype", "torch.as_tensor(t + 2, dtype", "test_stepsize"),
    Mutant("rules/polyak.py", "gap = self.gap(seen).clamp(min=0)", "gap = self.gap(seen)", "test_stepsize"),
    Mutant("rules/polyak.py", "torch.where(size < torch.inf, ratio, torch.nan)", "ratio", "test_training"),
    Mutant("rules/polyak.py", "device=loss.device)[seen.client]", "device=loss.device)[0]", "test_stepsize"),
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
    Mutant("methods/fedsps_normalized.py", "lower=lower, smoothing=smoothing", "lower=lower", "test_oracle::test_batches_and_client_sampling[FedSPSNormalized-paper-uniform]"),
    Mutant("methods/feddecsps.py", ", reset=reset)", ")", "test_oracle::test_batches_and_client_sampling[FedDecSPS-True-uniform]"),
    Mutant("methods/fedams.py", "option=option, bias_correction=bias_correction", "option=option", "test_oracle_methods::test_method[ams-bias-5-None-stacked]"),
    Mutant("methods/notation.py", "if slot in chosen:", "if False:", "test_catalogue"),
    Mutant("methods/notation.py", "given = {key: _as_default(value, known[key]) for key, value in given.items()}", "pass", "test_catalogue; test_spec"),
    # model
    Mutant("model/network.py", ".mean(-1), after", ".sum(-1), after", "test_network"),
    Mutant("model/network.py", "targets.ndim == leading - shared + 1 and not is_masked(targets)", "targets.ndim == leading - shared + 1", "test_network"),
    Mutant("model/network.py", "(targets != IGNORED).sum().clamp(min=1)", "(targets != IGNORED).sum()", "test_network"),
    Mutant("model/network.py", ".to(outputs.dtype).where(counted, torch.nan)", ".to(outputs.dtype)", "test_network"),
    Mutant("model/network.py", "{name: value.clone() for name, value in buffers.items()}", "dict(buffers)", "test_network"),
    Mutant("model/network.py", 'own = vmap(function, randomness="different")', 'own = vmap(function, randomness="same")', "test_network"),
    Mutant("model/network.py", "sum(kept.values()) // len(inputs)", "sum(kept.values())", "test_network"),
    Mutant("model/network.py", "counted.max() < outputs.shape[1]", "counted.max() <= outputs.shape[1]", "test_training"),
    Mutant("model/network.py", "buffer.copy_(buffers[name])", "pass", "test_network"),
    Mutant("model/logistic.py", "slope / targets.shape[-1]", "slope / targets.shape[0]", "test_network"),
    # engine
    Mutant("engine/batches.py", ' and not exchange.whole_data:', ":", "test_engines::test_full_gradients_are_of_the_images_as_they_are"),
    Mutant("engine/batches.py", "iteration=round * plan.local_steps", "iteration=round", "test_oracle::test_batches_and_client_sampling[FedDecSPS-False-uniform]"),
    Mutant("engine/batches.py", "loss, gradient, _ = self._evaluate(x, step)", "loss, gradient, self.buffers = self._evaluate(x, step)", "test_network"),
    Mutant("engine/batches.py", "losses.append(share * loss)", "losses.append(loss / len(inputs))", "test_engines::test_a_batch_that_does_not_fit_into_memory_is_taken_in_pieces"),
    Mutant("engine/setup.py", "counts / counts.sum()", "counts / counts.sum() if len(clients) > 3 else np.full(len(clients), 1 / len(clients))", "test_oracle::test_batches_and_client_sampling[FedAvg--samples]"),
    Mutant("engine/setup.py", "1 if size is None else -(-batch // size)", "1 if size is None else max(1, batch // size)", "test_oracle_methods::test_full_gradients_are_counted_in_mini_batches"),
    Mutant("engine/setup.py", "not self.network.is_plain_mean or self.network.buffers or masked", "not self.network.is_plain_mean or masked", "test_engines::test_modules_of_users"),
    Mutant("engine/setup.py", "not self.network.is_plain_mean or self.network.buffers or masked", "not self.network.is_plain_mean or self.network.buffers", "test_network::test_masked_targets_are_never_taken_in_pieces"),
    Mutant("engine/answer.py", "streams.torch_seed(setup.plan.seed, exchange.action, round, client)", "streams.torch_seed(0, exchange.action, round, client)", "test_network"),
    Mutant("engine/answer.py", "streams.torch_seed(setup.plan.seed, exchange.action, round, client)", "streams.torch_seed(setup.plan.seed, exchange.action, 0, client)", "test_network"),
    Mutant("engine/stacked.py", "streams.torch_seed(setup.plan.seed, exchange.action, state.round, int(numbers[0]))", "streams.torch_seed(0, exchange.action, state.round, int(numbers[0]))", "test_network"),
    Mutant("engine/stacked.py", "bytes_up += bytes_of(work.buffers.values())", "pass", "test_engines::test_modules_of_users"),
    Mutant("engine/round.py", "len(collected.clients) / setup.data.clients", "len(collected.clients) / len(cohort)", "test_oracle_methods::test_method[scaffold-5-3-stacked]"),
    Mutant("engine/round.py", "gradients=sum(collected.gradients for collected in answers)", "gradients=answers[-1].gradients", "test_training"),
    Mutant("engine/round.py", "*received.values(), *state.buffers.values()]", "*received.values()]", "test_training; test_network"),
    Mutant("engine/session.py", "self.state = after if sound else self.state", "self.state = after", "test_training"),
    Mutant("engine/session.py", " and (done.trace is None or done.trace.losses.isfinite().all())", "", "test_training"),
    Mutant("engine/session.py", 'self.rows[-1]["train_loss"] <= stop_at_loss', 'self.rows[-1]["train_loss"] < stop_at_loss', "test_training"),
    Mutant("engine/session.py", "evaluate_clients(setup.network, state.result, state.buffers, test)", "evaluate_clients(setup.network, state.x, state.buffers, test)", "test_training"),
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
    Mutant("runs/checkpoint.py", "if field.name not in LATER]", "if field.name not in (*LATER, 'seed')]", "test_plan"),
    Mutant("runs/checkpoint.py", "if key:\n            groups[group][key] = tensor", "if key and group != \"output\":\n            groups[group][key] = tensor", "test_training"),
    Mutant("runs/run.py", "for name in (SUMMARY, CHECKPOINT):", "for name in (SUMMARY,):", "test_spec"),
    Mutant("runs/run.py", "if len(result.history) == spec.plan.rounds or result.diverged_at is not None:", "if len(result.history) == spec.plan.rounds:", "test_spec::test_a_run_that_diverged_is_finished"),
    Mutant("runs/result.py", "value is not None and np.isfinite(value)", "value is not None", "test_cli::test_json_is_json_even_without_numbers; test_spec; test_cli"),
    Mutant("runs/tune.py", '["round"] > 0.9 * table', '["round"] >= 0.9 * table', "test_tune"),
    Mutant("runs/tune.py", '**({"seed": TUNING_SEED} | settings)', "**settings", "test_tune"),
    Mutant("runs/tune.py", 'np.isfinite(scores) & ~self.table["dropped"].to_numpy(bool)', "np.isfinite(scores)", "test_tune"),
    # report
    Mutant("report/compare.py", "(TARGET_FACTOR * min(finite) if", "(min(finite) if", "test_comparison"),
    # sweeps and workers
    Mutant("core/stacking.py", "return column.unsqueeze(-1) if on_clients else column", "return column", "test_sweep"),
    Mutant("core/stacking.py", 'if not vars(type(first)).get("in_sweep", False):', "if False:", "test_sweep"),
    Mutant("core/algorithm.py", 'vars(type(part)).get("in_span", False)', 'type(part).in_span', "test_sweep"),
    Mutant("model/span.py", "product if first == second else 2 * product", "product", "test_sweep"),
    Mutant("model/span.py", "parts[step] - part if step in parts else -part", "parts[step] - part if step in parts else part", "test_sweep"),
    Mutant("model/span.py", "self.is_point and not other.is_point", "self.is_point", "test_sweep"),
    Mutant("engine/sweep.py", "states[name].index_copy_(1, index, value)", "pass", "test_sweep"),
    Mutant("engine/sweep.py", "self._end(number, before, place, diverged=True)", "self._end(number, after, place, diverged=True)", "test_sweep"),
    Mutant("engine/sweep.py", "self._leave(unwanted, dropped=True)", "pass", "test_sweep"),
    Mutant("engine/evaluate.py", "logits.logsumexp(-1) - logits.gather(-1, truth)[..., 0]", "logits.logsumexp(-1)", "test_sweep"),
    Mutant("engine/workers.py", "torch.default_generator.set_state(state)", "pass", "test_workers"),
    Mutant("engine/workers.py", "return max(1, own // _processes)", "return own", "test_workers"),
    Mutant("model/network.py", "self._copies[thread] = copy.deepcopy(self._watched)", "self._copies[thread] = self._watched", "test_workers"),
    Mutant("runs/run.py", 'return "sweep" not in', 'return "swept" not in', "test_sweep"),
    # flower
    Mutant("flower/check.py", "answer.trace.gap.clamp(-1, 1)", "answer.trace.gap.nan_to_num().clamp(-1, 1)", "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", 'for name in ("losses", "stepsizes")]', 'for name in ("losses",)]', "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", "got.shape != value.shape or got.dtype != value.dtype", "got.shape != value.shape", "test_flower_faults::test_a_bad_answer_is_refused_and_named"),
    Mutant("flower/check.py", 'if not 0 <= scores.get("test_accuracy", 0) <= 1:', "if False:", "test_flower_faults::test_bad_scores_are_left_out"),
    Mutant("flower/transport.py", "2 * len(some) >= len(self.sound)", "2 * len(some) > len(self.sound)", "test_flower_faults::test_exactly_half_of_the_answers_are_enough_for_divergence"),
    Mutant("flower/transport.py", "2 * len(some) >= len(self.sound) + self.unused", "2 * len(some) >= len(self.sound)", "test_secagg::test_one_infinite_client_and_two_that_are_gone_are_no_divergence"),
    Mutant("flower/transport.py", "self.sound.clear()", "pass", "test_flower_faults::test_answers_of_two_attempts_are_not_added_up"),
    Mutant("flower/plain.py", "no_mean if diverged else self.mean", "self.mean", "test_flower_faults::test_a_median_does_not_hide_divergence"),
    Mutant("flower/plain.py", "2 * len(beyond) < len(scores)", "2 * len(beyond) <= len(scores)", "test_flower_faults::test_an_infinite_loss_is_told"),
    Mutant("flower/plain.py", "float(counts @ [values[name] for values in held] / counts.sum())", "float(np.mean([values[name] for values in held]))", "test_flower::test_scores_of_the_clients_own_tests_are_over_all_their_samples"),
    Mutant("flower/server.py", "since[torch.from_numpy(clients)] = state.round", "since[torch.from_numpy(clients)] = state.round - 1", "test_flower::test_states_are_kept_for_two_rounds_and_by_run"),
    Mutant("flower/server.py", 'if exchange.action == "train" else state.ledger', "if True else state.ledger", "test_flower::test_only_training_counts_as_taking_part"),
    Mutant("flower/server.py", "[audience] * (1 + config.retries)", "[audience] * max(1, config.retries)", "test_flower_faults::test_too_few_answers_repeat_the_round_then_stop"),
    Mutant("flower/server.py", "np.setdiff1d(group, heard.refused)", "group", "test_flower_faults::test_a_repetition_leaves_out_a_client_that_diverged"),
    Mutant("flower/server.py", "config.deadline if attempt else 0", "0", "test_flower_faults::test_a_repetition_waits_until_the_nodes_are_back"),
    Mutant("flower/server.py", "or left <= len(heard.refused):", "or left < len(heard.refused):", "test_flower_faults::test_nobody_is_asked_again_once_half_have_diverged"),
    Mutant("flower/server.py", 'int(state.ledger["counted"].max())', 'int(state.ledger["counted"].min())', "test_privacy"),
    Mutant("flower/server.py", "if (self.folder / SUMMARY).exists():\n            self.forget()", "pass", "test_flower::test_a_checkpoint_that_a_finished_run_left_is_none_to_go_on_from"),
    Mutant("flower/store.py", "not in (since, round):", "not in (round,):", "test_flower::test_states_are_kept_for_two_rounds_and_by_run"),
    Mutant("flower/store.py", "if file.metadata() != self._notes:", "if False:", "test_flower::test_states_of_another_run_of_the_same_spec_do_not_count"),
    Mutant("flower/client.py", "size, held = 1, 0", "size, held = size, 0", "test_privacy"),
    Mutant("flower/client.py", 'self.config.privacy.clip(done.message["delta"])', 'done.message["delta"]', "test_privacy"),
    Mutant("flower/membership.py", "if not 0 <= partition < partitions <= MOST", "if not 0 <= partition <= partitions <= MOST", "test_flower_faults::test_what_a_node_cannot_be_is_refused"),
    Mutant("flower/membership.py", "del self.nodes[partition]", "pass", "test_flower::test_a_late_answer_leaves_no_trace"),
    Mutant("flower/privacy.py", "self.noise_multiplier * self.clip_norm / len(values)", "self.noise_multiplier * self.clip_norm", "test_privacy"),
    Mutant("flower/privacy.py", "dp.GaussianDpEvent(noise_multiplier / 2)", "dp.GaussianDpEvent(noise_multiplier)", "test_privacy"),
    Mutant("flower/privacy.py", "len(counted), max(counted)", "len(counted), min(counted)", "test_privacy"),
    Mutant("flower/privacy.py", "and sum(counted) == rounds * cohort:", "and True:", "test_privacy"),
    Mutant("flower/secagg.py", "max(LEAST, -(-2 * cohort // 3))", "max(LEAST, 2 * cohort // 3)", "test_secagg::test_two_thirds_and_never_two"),
    Mutant("flower/secagg.py", "needed(len(audience) + len(heard.refused))", "needed(len(audience))", "test_secagg::test_a_repetition_without_a_diverged_client_needs_as_many_as_before"),
    Mutant("flower/secagg.py", "bytes_up=8 * (1 + len(asked.mean)) * len(clients)", "bytes_up=8 * len(asked.mean) * len(clients)", "test_secagg::test_equals_the_plain_mean"),
    Mutant("flower/secagg.py", "(values.abs() > limit).any()", "(values > limit).any()", "test_secagg::test_a_value_beyond_the_range_is_told_on_either_side"),
    Mutant("flower/secagg.py", "check_bound(round + 1, done.trace.as_cohort, np.array([client]))", "pass", "test_secagg::test_losses_below_their_bound_stop_the_run_if_half_of_the_clients_say_so"),
    Mutant("flower/secagg.py", "return [] if self.silent else replies", "return replies", "test_secagg::test_goes_on_without_a_client_that_is_silent_from_a_stage_on"),
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
