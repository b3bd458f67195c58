"""The optimisers in four training loops: a plain one, Lightning's, Accelerate's and Hugging Face's, step for step alike."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedsps
from fedsps.optim import SPS, DecSPS

torch.manual_seed(3)
INPUTS = torch.randn(48, 5)
TARGETS = (INPUTS[:, 0] + 0.3 * torch.randn(48) > 0).long()
NET = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
BATCHES = list(DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=12))


def by_hand(make):
    model = copy.deepcopy(NET)
    optimizer = make(model.parameters())
    steps = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step(loss=loss)
        steps.append(optimizer.param_groups[0]["stepsize"])
    return list(model.parameters()), steps


def same(found, make):
    parameters, steps = by_hand(make)
    assert found[1] == steps
    assert all(torch.equal(own, other) for own, other in zip(found[0], parameters, strict=True))


def with_lightning(make, accumulate=1, by_hand=None):
    """`by_hand` says whether manual optimisation takes Lightning's wrapper; None: Lightning makes the call."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.steps = copy.deepcopy(NET), []
            self.automatic_optimization = by_hand is None

        def training_step(self, batch):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            if by_hand is not None:
                optimizer = self.optimizers(use_pl_optimizer=by_hand)
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step(loss=loss)
            return loss

        def configure_optimizers(self):
            return make(self.parameters())

        def on_train_batch_end(self, *_):
            self.steps.append(self.optimizers().param_groups[0]["stepsize"])

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, accumulate_grad_batches=accumulate, **quiet)
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=12))
    return list(module.parameters()), module.steps


def with_accelerate(make, accumulate=1):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    plain = copy.deepcopy(NET)
    sps, steps = make(plain.parameters()), []
    model, optimizer, loader = accelerator.prepare(
        plain, sps, DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=12)
    )
    for x, y in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            sps.loss = loss
            optimizer.step()
            steps.append(sps.param_groups[0]["stepsize"])
    return list(plain.parameters()), steps


class Answering(nn.Module):
    """A model as Hugging Face's Trainer wants it: inputs by name, the loss among its outputs."""

    def __init__(self):
        super().__init__()
        self.net = copy.deepcopy(NET)

    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.net(x), labels)}


def with_transformers(make, folder, accumulate=1):
    import transformers

    model = Answering()
    sps, steps = make(model.parameters()), []

    class WithLoss(transformers.Trainer):
        def training_step(self, *given, **named):
            sps.loss = super().training_step(*given, **named)
            steps.append(sps.param_groups[0]["stepsize"])
            return sps.loss

        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=12,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    data = [{"x": x, "labels": int(y)} for x, y in zip(INPUTS, TARGETS, strict=True)]
    WithLoss(model, arguments, train_dataset=data, optimizers=(sps, None)).train()
    return list(model.parameters()), [*steps[1:], sps.param_groups[0]["stepsize"]]


@pytest.mark.parametrize("make", [SPS, DecSPS])
@pytest.mark.filterwarnings("ignore")
def test_four_loops_take_the_same_steps(make, tmp_path):
    same(with_lightning(make), make)
    same(with_accelerate(make), make)
    same(with_transformers(make, tmp_path), make)


@pytest.mark.filterwarnings("ignore")
def test_manual_optimisation_in_lightning_takes_the_optimiser_itself():
    same(with_lightning(SPS, by_hand=False), SPS)
    with pytest.raises(fedsps.ConfigurationError, match=r"Lightning's adds a closure.*use_pl_optimizer=False"):
        with_lightning(SPS, by_hand=True)


@pytest.mark.filterwarnings("ignore")
def test_gradient_accumulation_is_refused_where_it_is_seen(tmp_path):
    for accumulating in (
        lambda: with_lightning(SPS, accumulate=4),
        lambda: with_accelerate(SPS, accumulate=4),
        lambda: with_transformers(SPS, tmp_path, accumulate=4),
    ):
        with pytest.raises(fedsps.ConfigurationError, match=r"gradient accumulation .*mean of their losses"):
            accumulating()


def parameter(gradient=1.0):
    made = nn.Parameter(torch.ones(2))
    made.grad = torch.full((2,), gradient)
    return made


def test_a_plain_step_uses_the_loss_once():
    one, other = parameter(), parameter()
    optimizer = SPS([one])
    optimizer.loss = torch.tensor(0.3, requires_grad=True)
    assert not optimizer.loss.requires_grad, "a loss that is kept does not keep its graph"
    assert optimizer.step() == pytest.approx(0.3)
    SPS([other]).step(loss=0.3)
    assert torch.equal(one, other)
    assert optimizer.loss is None
    with pytest.raises(fedsps.ConfigurationError, match=r"set optimizer.loss = loss on this optimiser"):
        optimizer.step()


def test_a_loss_may_be_set_again_once_the_gradients_are_cleared():
    optimizer = SPS([parameter()])
    optimizer.loss = 1.0
    with pytest.raises(fedsps.ConfigurationError, match="set twice before a step"):
        optimizer.loss = 2.0
    optimizer.zero_grad()  # as after a batch that was skipped
    optimizer.loss = 2.0
    assert optimizer.step() == 2.0
    with pytest.raises(fedsps.ConfigurationError, match="one real number"):
        optimizer.loss = torch.ones(3)


def test_a_closure_that_does_not_clear_is_refused_and_one_that_does_is_not():
    model = copy.deepcopy(NET)
    optimizer = SPS(model.parameters())

    def closure(clear=None):
        if clear is not None:
            optimizer.zero_grad(set_to_none=clear)
        loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
        loss.backward()
        return loss

    optimizer.step(closure)  # there is no gradient yet
    for clear in (True, False, True):
        optimizer.step(lambda clear=clear: closure(clear))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(fedsps.ConfigurationError, match="added to gradients that were there before"):
        optimizer.step(closure)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("make", [SPS, DecSPS])
@pytest.mark.parametrize(
    ("loss", "gradient", "message"),
    [
        (torch.nan, 1.0, "the loss is nan: the parameters are as they were"),
        (torch.inf, 1.0, "the loss is inf"),
        (1.0, torch.nan, "the squared norm of the gradient is nan"),
        (1.0, torch.inf, "the squared norm of the gradient is inf"),
    ],
)
def test_what_is_not_a_number_raises_before_it_spreads(make, loss, gradient, message):
    one = parameter(gradient)
    optimizer = make([one])
    with pytest.raises(fedsps.NotFiniteError, match=message):
        optimizer.step(loss=loss)
    assert one.tolist() == [1.0, 1.0]
    one.grad = torch.ones(2)
    optimizer.step(loss=1.0)
    assert optimizer.param_groups[0]["stepsize"] > 0, "and goes on with the next batch"


@pytest.mark.parametrize("make", [SPS, DecSPS])
def test_the_stepsize_is_there_from_the_start(make):
    optimizer = make([parameter()])
    optimizer.add_param_group({"params": [parameter()]})
    assert [group["stepsize"] for group in optimizer.param_groups] == [0.0, 0.0]
