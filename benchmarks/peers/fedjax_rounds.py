"""FedJAX: its own federated averaging on a model in plain JAX; it draws the batches itself."""

import jax
import jax.numpy as jnp
from workload import BATCH, CLASSES, FEATURES, LOCAL_STEPS, STEPSIZE, Work, clients

# FedJAX 0.0.17 uses names that newer JAX has under jax.tree_util alone
jax.tree_map, jax.tree_leaves = jax.tree_util.tree_map, jax.tree_util.tree_leaves

import fedjax  # noqa: E402


def loss(params, batch, rng):
    scores = jax.nn.log_softmax(batch["x"] @ params["weight"] + params["bias"])
    return -jnp.take_along_axis(scores, batch["y"][:, None], 1).mean()


work = Work()
algorithm = fedjax.algorithms.fed_avg.federated_averaging(
    grad_fn=jax.grad(loss),
    client_optimizer=fedjax.optimizers.sgd(STEPSIZE),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(BATCH, num_epochs=None, num_steps=LOCAL_STEPS),
)
data = [fedjax.ClientDataset({"x": inputs, "y": targets}) for inputs, targets in clients(work.samples)]
keys = jax.random.split(jax.random.PRNGKey(0), len(data))
cohort = [(str(number), own, keys[number]) for number, own in enumerate(data)]
state = algorithm.init({"weight": jnp.zeros((FEATURES, CLASSES)), "bias": jnp.zeros(CLASSES)})
for _ in range(work.rounds):
    state, _ = algorithm.apply(state, cohort)
    jax.block_until_ready(state.params)
    work.round_ends()
work.finish(state.params["weight"], state.params["bias"])
