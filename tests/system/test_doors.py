"""The trainer as a library: a foreign randomizer, a foreign protocol and foreign models, none of them in the library.

Also what is refused: classes nobody registered, and models that mix clients.
"""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.flatten_util import ravel_pytree
from stand_in import quick_account

import checkin_jax as cj
from checkin_jax._rounding import up
from checkin_jax.auditing import one_run
from checkin_jax.protocols import VIEWS, Cover
from checkin_jax.training import draws
from checkin_jax.training.reports import run_page

pytestmark = pytest.mark.usefixtures("compiled_in_haste")

GAUSSIAN = cj.Gaussian(noise_multiplier=0.5)
ROUNDS = cj.ShuffledCheckIn(num_clients=300, check_in_prob=0.4, num_rounds=12)


# Foreign classes, as a user would write them.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundedNoise(cj.Randomizer):
    """Normal noise, then rounding to a grid: post-processing, known by its privacy profile alone."""

    noise_multiplier: float
    step: float = 0.25

    @property
    def description(self):
        return f"normal noise of {self.noise_multiplier:g} clip norms, rounded to {self.step:g}"

    @property
    def largest_loss(self):
        return math.inf

    def profile(self, loss):
        return cj.Gaussian(noise_multiplier=self.noise_multiplier).profile(loss)

    @property
    def assumptions(self):
        return ("the grid is chosen beforehand",)


@cj.training.register_mechanism(RoundedNoise)
class RoundedMessages(cj.training.Mechanism):
    """Every message is drawn by itself and rounded to the grid: post-processing."""

    @property
    def noise_multiplier(self) -> float:
        return self.randomizer.noise_multiplier

    def messages(self, keys, clipped):
        noise = jax.vmap(lambda key: jax.random.normal(key, clipped.shape[1:], jnp.float32))(keys)
        grid = self.randomizer.step * self.clip_norm
        return jnp.round((clipped + self.noise_multiplier * self.clip_norm * noise) / grid) * grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class EverybodyTwice(cj.CheckInProtocol):
    """Plain shuffling in which a unit is two updates, each from one half of the clients by a coin of the day."""

    num_clients: int
    num_rounds: int = 1

    _unit = "num_rounds"
    title = "everybody, in halves"

    @property
    def description(self):
        return f"over {self.num_rounds} days, in halves"

    @property
    def assumptions(self):
        return ("the coin of the day is fair",)

    @property
    def rate(self):
        return 1.0

    @property
    def cover(self):
        return Cover(self.num_clients, 1.0)


@cj.training.register_schedule(EverybodyTwice)
class Halves(cj.training.Schedule):
    @property
    def check_ins(self):
        return self.protocol.num_clients, 0.5

    @property
    def rounds_per_unit(self):
        return 2

    def draw(self, entropy):
        def clients(index):
            unit, half = divmod(index, 2)
            rng = draws.generator(entropy, draws.Stream.PARTICIPANTS, unit)
            return rng.permutation(np.flatnonzero((rng.random(self.protocol.num_clients) < 0.5) == half))

        return clients


def two_classes(number=400, seed=0):
    """Points on a line with noise, as a table: records are dictionaries."""
    rng = np.random.default_rng(seed)
    label = rng.integers(2, size=number).astype(np.int32)
    features = (rng.normal(size=(number, 3)) + 4.0 * (label[:, None] - 0.5) * [1, 0, -1]).astype(np.float32)
    return {"features": features, "label": label}


DATASET = cj.training.Dataset(records=two_classes(), test=two_classes(200, 1), name="two classes")


def cross_entropy(logits, record):
    return -jax.nn.log_softmax(logits)[record["label"]]


def accuracy(logits, record):
    return {"accuracy": (jnp.argmax(logits) == record["label"]).astype(jnp.float32)}


@functools.cache
def plain_model() -> cj.training.Model:
    """Pure functions: no framework at all."""

    def init(key):
        return {
            "weights": 0.1 * jax.random.normal(key, (3, 2), jnp.float32),
            "bias": jnp.zeros(2, jnp.float32),
        }

    def apply(parameters, record):
        return record["features"] @ parameters["weights"] + parameters["bias"]

    return cj.training.Model(
        init=init,
        loss=lambda parameters, record: cross_entropy(apply(parameters, record), record),
        metrics=lambda parameters, record: accuracy(apply(parameters, record), record),
        name="logistic regression",
    )


@functools.cache
def nnx_model() -> cj.training.Model:
    """flax.nnx: a module is split into what it is and its parameters."""

    def build(key):
        rngs = nnx.Rngs(key)
        hidden, out = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)
        return nnx.Sequential(hidden, nnx.relu, nnx.LayerNorm(8, rngs=rngs), out)

    graph, _ = nnx.split(build(jax.random.key(0)), nnx.Param)

    def apply(parameters, record):
        return nnx.merge(graph, parameters)(record["features"])

    return cj.training.Model(
        init=lambda key: nnx.split(build(key), nnx.Param)[1],
        loss=lambda parameters, record: cross_entropy(apply(parameters, record), record),
        metrics=lambda parameters, record: accuracy(apply(parameters, record), record),
        name="nnx",
    )


@functools.cache
def linen_model() -> cj.training.Model:
    """flax.linen: a module is a pair of pure functions already."""
    module = linen.Sequential([linen.Dense(8), linen.relu, linen.Dense(2)])

    def apply(parameters, record):
        return module.apply(parameters, record["features"])

    return cj.training.Model(
        init=lambda key: module.init(key, jnp.zeros(3, jnp.float32)),
        loss=lambda parameters, record: cross_entropy(apply(parameters, record), record),
        metrics=lambda parameters, record: accuracy(apply(parameters, record), record),
        name="linen",
    )


MODELS = {"plain": plain_model, "nnx": nnx_model, "linen": linen_model}


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# Models and optimizers.


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "optimizer", [None, optax.adam(optax.cosine_decay_schedule(0.05, 12))], ids=["default", "adam, cosine"]
)
@pytest.mark.turns(2)
def test_models_of_any_framework_learn_with_any_optimizer(tmp_path, name, optimizer):
    model, folder = MODELS[name](), tmp_path / "run"
    run = cj.training.PrivateRun(protocol=ROUNDS, randomizer=GAUSSIAN, clip_norm=1.0)
    seen = []
    with jax.numpy_dtype_promotion("standard"):  # optax relies on it
        report = cj.training.train(
            run,
            model,
            DATASET,
            folder,
            optimizer=optimizer,
            eval_every=4,
            evaluate=lambda parameters: {"norm": optax.tree.norm(parameters)},
            on_round=seen.append,
            seed=3,
            account_fn=quick_account,
        )
    assert report.accuracy > 0.8
    assert [line["round"] for line in seen if "accuracy" in line] == [4, 8, 12]
    assert metrics_of(folder) == seen
    assert seen[-1]["norm"] == pytest.approx(report.metrics["norm"])
    assert "on the test set" in (folder / "report.txt").read_text()
    # What was saved comes back in the model's own structure.
    parameters = cj.training.load(folder, model)
    assert model.metrics is not None
    again = np.mean([model.metrics(parameters, record)["accuracy"] for record in rows(DATASET.test)])
    assert again == pytest.approx(report.accuracy)
    stored = cj.training.read(folder)
    assert stored.run == run
    assert stored.about["model"] == model.name


def rows(records):
    return [{name: x[i] for name, x in records.items()} for i in range(len(records["label"]))]


def test_parameters_of_another_model_are_refused(tmp_path):
    run = cj.training.PrivateRun(protocol=cj.Shuffle(num_clients=9), randomizer=GAUSSIAN)
    cj.training.train(run, plain_model(), DATASET, tmp_path / "run", seed=1, account_fn=quick_account)
    with pytest.raises(ValueError, match="of another model"):
        cj.training.load(tmp_path / "run", linen_model())
    with pytest.raises(FileNotFoundError, match="has the run ended"):
        cj.training.load(tmp_path, plain_model())


def test_a_resumed_run_of_a_foreign_model_ends_with_the_same_bits_and_another_model_is_refused(tmp_path):
    run = cj.training.PrivateRun(protocol=ROUNDS, randomizer=GAUSSIAN, clip_norm=1.0)
    options = {"seed": 5, "eval_every": 5, "account_fn": quick_account, "averaging": 0.3}

    def adam(rate):
        return optax.adam(optax.cosine_decay_schedule(rate, 12), b1=0.8)

    def kill(line):
        if line["round"] == 7:
            raise KeyError("killed")

    def train(folder, model, rate=0.1, **others):
        with jax.numpy_dtype_promotion("standard"):  # optax relies on it
            return cj.training.train(run, model(), DATASET, folder, optimizer=adam(rate), **options, **others)

    train(tmp_path / "whole", nnx_model)
    with pytest.raises(KeyError, match="killed"):
        train(tmp_path / "run", nnx_model, checkpoint_every=3, on_round=kill)
    # The same settings by name: what differs is the code.
    with pytest.raises(ValueError, match=r"of model, loss and optimizer \(program\) differs"):
        train(tmp_path / "run", nnx_model, rate=0.2, resume=True)

    def scaled():
        model = nnx_model()
        return dataclasses.replace(model, loss=lambda p, record: 1.5 * model.loss(p, record))

    with pytest.raises(ValueError, match=r"of model, loss and optimizer \(program\) differs"):
        train(tmp_path / "run", scaled, resume=True)
    train(tmp_path / "run", nnx_model, resume=True)
    for name in ("parameters.npz", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_parameters_in_short_formats_are_trained_and_come_back(tmp_path):
    model = plain_model()
    assert model.metrics is not None
    short = dataclasses.replace(
        model,
        init=lambda key: jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.init(key)),
        loss=lambda p, record: model.loss(jax.tree.map(lambda x: x.astype(jnp.float32), p), record),
        metrics=None,
    )
    run = cj.training.PrivateRun(protocol=ROUNDS, randomizer=GAUSSIAN, clip_norm=1.0)
    report = cj.training.train(
        run,
        short,
        DATASET,
        tmp_path / "run",
        optimizer=optax.sgd(0.3, momentum=0.5),
        seed=1,
        account_fn=quick_account,
    )
    assert report.metrics == {}
    parameters = cj.training.load(tmp_path / "run", short)
    assert {leaf.dtype for leaf in jax.tree.leaves(parameters)} == {jnp.dtype(jnp.bfloat16)}
    tested = [
        model.metrics(jax.tree.map(lambda x: x.astype(jnp.float32), parameters), r)
        for r in rows(DATASET.test)
    ]
    assert np.mean([each["accuracy"] for each in tested]) > 0.85


# What mixes clients is refused.


class _Normalised(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.norm = nnx.Linear(3, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.linear(x)[None])[0]


def _batch_norm_nnx():
    def split(key):
        return nnx.split(_Normalised(nnx.Rngs(key)))

    graph = split(jax.random.key(0))[0]
    return cj.training.Model(
        init=lambda key: split(key)[1],
        loss=lambda p, record: cross_entropy(nnx.merge(graph, p)(record["features"]), record),
    )


def _batch_norm_nnx_of_parameters():
    """Its statistics are no parameters; writing them is what cannot be."""

    def split(key):
        return nnx.split(_Normalised(nnx.Rngs(key)), nnx.Param, ...)

    graph, _, kept = split(jax.random.key(0))
    return cj.training.Model(
        init=lambda key: split(key)[1],
        loss=lambda p, record: cross_entropy(nnx.merge(graph, p, kept)(record["features"]), record),
    )


def _batch_norm_linen_of_parameters():
    module = linen.Sequential([linen.Dense(2), linen.BatchNorm(use_running_average=False)])
    kept = {"layers_1": {"mean": jnp.zeros(2, jnp.float32), "var": jnp.ones(2, jnp.float32)}}

    def loss(parameters, record):
        x = record["features"][None]
        return cross_entropy(module.apply({"params": parameters, "batch_stats": kept}, x)[0], record)

    return cj.training.Model(init=_batch_norm_linen("clients").init, loss=loss)


def _batch_norm_linen(axis=None):
    module = linen.Sequential(
        [linen.Dense(2), linen.BatchNorm(use_running_average=axis is None, axis_name=axis)]
    )

    def init(key):
        still = linen.Sequential([linen.Dense(2), linen.BatchNorm(use_running_average=True)])
        variables = still.init(key, jnp.zeros((1, 3), jnp.float32))
        return variables if axis is None else variables["params"]

    def loss(parameters, record):
        x = record["features"][None]
        if axis is None:
            return cross_entropy(module.apply(parameters, x)[0], record)
        stats = {"layers_1": {"mean": jnp.zeros(2, jnp.float32), "var": jnp.ones(2, jnp.float32)}}
        return cross_entropy(
            module.apply({"params": parameters, "batch_stats": stats}, x, mutable=["batch_stats"])[0][0],
            record,
        )

    return cj.training.Model(init=init, loss=loss)


def _with(loss=None, init=None):
    model = plain_model()
    return dataclasses.replace(model, **{k: v for k, v in {"loss": loss, "init": init}.items() if v})


def _printing(parameters, record):
    jax.debug.print("{}", record["label"])
    return plain_model().loss(parameters, record)


def _ask(x):
    return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x, vmap_method="expand_dims")


def _asking(parameters, record):
    """Sees all clients of a microbatch at once, in a loop."""
    loss = plain_model().loss(parameters, record)
    return loss + jax.lax.stop_gradient(jax.lax.fori_loop(0, 2, lambda i, x: _ask(x), loss))


@jax.custom_vjp
def _honest(x):
    return x


_honest.defvjp(lambda x: (x, None), lambda _, g: (_ask(g),))


def _asking_backwards(parameters, record):
    """Only its gradient is what it should not be."""
    return _honest(plain_model().loss(parameters, record))


@jax.custom_batching.custom_vmap
def _minus_mean(x):
    return x


@_minus_mean.def_vmap
def _over_clients(size, batched, x):
    return x - jnp.mean(x), True


def _centred(parameters, record):
    return plain_model().loss(parameters, record) + jax.lax.stop_gradient(_minus_mean(record["features"][0]))


def _without_a_name(parameters, record):
    return eval("_nowhere")


def _counting(key):
    return {**plain_model().init(key), "steps": jnp.zeros((), jnp.int32)}


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (_batch_norm_nnx, TypeError, "running statistics of batch normalisation"),
        (_batch_norm_linen, TypeError, "batch_stats.*running statistics of batch normalisation"),
        (
            functools.partial(_batch_norm_linen, "clients"),
            ValueError,
            "communicates with other clients.*clients",
        ),
        (_batch_norm_nnx_of_parameters, ValueError, "writes state that later.*BatchStat.*GroupNorm"),
        (_batch_norm_linen_of_parameters, ValueError, "writes state that later.*batch_stats.*GroupNorm"),
        (
            functools.partial(_with, lambda p, record: record["features"] @ p["weights"]),
            TypeError,
            "one floating",
        ),
        (functools.partial(_with, _without_a_name), NameError, "'_nowhere' is not defined"),
        (functools.partial(_with, _printing), ValueError, r"calls the host.*Debug"),
        (functools.partial(_with, _asking), ValueError, r"calls the host.*pure_callback"),
        (functools.partial(_with, _asking_backwards), ValueError, r"gradient of one.*pure_callback"),
        (functools.partial(_with, _centred), ValueError, r"its own batching rule.*custom_vmap"),
        (functools.partial(_with, None, _counting), TypeError, "'steps' of type int32"),
    ],
    ids=[
        "nnx BatchNorm",
        "linen BatchNorm",
        "BatchNorm over clients",
        "nnx BatchNorm without its statistics",
        "linen BatchNorm without its statistics",
        "no scalar",
        "an unknown name",
        "prints",
        "asks",
        "asks back",
        "centres",
        "counter",
    ],
)
def test_what_mixes_clients_or_leaks_is_refused_with_the_reason(tmp_path, model, error, match):
    run = cj.training.PrivateRun(protocol=cj.Shuffle(num_clients=9), randomizer=GAUSSIAN)
    with pytest.raises(error, match=match):
        cj.training.train(run, model(), DATASET, tmp_path / "run", account_fn=quick_account)
    assert not (tmp_path / "run").exists()


# Users: whose records are whose.


def test_clients_hold_the_records_of_one_owner_each():
    owner = np.array([7, 3, 7, 7, 5, 3])
    dataset = cj.training.Dataset(records=np.arange(6), owner=owner)
    for num_clients in (2, 3, 40):
        holdings = dataset.holdings(1, num_clients, None)
        assert holdings.shape == (num_clients, 3)
        held = holdings[np.arange(num_clients)]
        owned = [sorted(row[row >= 0].tolist()) for row in held]
        assert all(row in ([0, 2, 3], [1, 5], [4]) for row in owned)
        assert not np.any((held[:, :-1] < 0) & (held[:, 1:] >= 0))
        if num_clients <= 3:
            assert len(set(map(tuple, owned))) == num_clients
    sampled = dataset.holdings(1, 3, 2)[np.arange(3)]
    assert sampled.shape == (3, 2)
    assert sorted(np.sum(sampled >= 0, axis=1)) == [1, 2, 2]
    seen = {
        tuple(sorted(row))
        for seed in range(60)
        for row in dataset.holdings(seed, 3, 2)[np.arange(3)]
        if 3 in row or 0 in row
    }
    assert seen == {(0, 2), (0, 3), (2, 3)}
    assert dataset.sharing(3, None) is None
    assert "3 owners" in str(dataset.sharing(4, None))
    assert "up to 3 records" in str(dataset.holding(None))
    assert "up to 2 records" in str(dataset.holding(2))
    assert "up to 3 records" in str(dataset.holding(10))
    assert dataset.holding(1) is None


def test_where_records_have_no_owner_clients_hold_as_many_as_they_are_dealt():
    dataset = cj.training.Dataset(records=np.arange(6))
    assert dataset.holding(None) is None
    assert dataset.holding(1) is None
    assert "up to 4 records" in str(dataset.holding(4))


def test_training_on_users_moves_by_the_mean_over_each_ones_own_records(tmp_path):
    records = two_classes(50)
    owner = np.random.default_rng(2).integers(9, size=50)
    dataset = cj.training.Dataset(records=records, owner=owner)
    model, number = plain_model(), len(np.unique(owner))
    run = cj.training.PrivateRun(
        protocol=cj.Shuffle(num_clients=number), randomizer=cj.Gaussian(noise_multiplier=1e-30), clip_norm=1e3
    )
    first = []
    report = cj.training.train(
        run,
        model,
        dataset,
        tmp_path / "run",
        optimizer=optax.sgd(1.0),
        on_model=lambda parameters: first.append(ravel_pytree(parameters)[0]),
        seed=1,
        account_fn=quick_account,
    )
    said = report.notes()[1]  # after that of the seed
    most = np.unique(owner, return_counts=True)[1].max()
    assert said.startswith(f"a client holds up to {most} records: all of them together are protected")
    assert f"  note       {said}" in (tmp_path / "run" / "report.txt").read_text()
    flat, unravel = first[0], ravel_pytree(model.init(jax.random.key(0)))[1]

    def mean_of(one):
        mine = jax.tree.map(lambda x: x[owner == one], records)
        return lambda flat: jnp.mean(jax.vmap(lambda record: model.loss(unravel(flat), record))(mine))

    expected = np.mean([jax.grad(mean_of(one))(flat) for one in np.unique(owner)], axis=0)
    np.testing.assert_allclose(first[0] - first[1], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"records": {"a": np.zeros(3), "b": np.zeros(4)}}, r"records: .*\[3, 4\]"),
        ({"records": np.zeros((0, 2))}, r"records: .*\[0\]"),
        ({"records": np.float32(1)}, "records"),
        ({"records": np.zeros(3), "test": ()}, "test"),
        ({"records": np.zeros(3), "owner": np.zeros(2, int)}, "owner: expected 3"),
        ({"records": np.zeros(3), "owner": np.zeros(3)}, "owner: .*float64"),
    ],
)
def test_data_sets_that_do_not_fit_together_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        cj.training.Dataset(**arguments)


# Foreign randomizers and protocols.


def all_say_the_same(run, report, folder):
    """What was trained is what is accounted for, in the report, its files, the metrics and the page."""
    statement, read = (folder / "report.txt").read_text(), cj.training.read(folder)
    saved = json.loads((folder / "report.json").read_text())["guarantees"]
    page = html.unescape(run_page.build(read))
    assert read.run == run
    for view in VIEWS:
        g = cj.account(run.protocol, run.randomizer, delta=run.delta, view=view)
        assert 0.0 <= g.lower <= g.epsilon < math.inf
        assert report.guarantees[view] == g
        assert saved[view] == json.loads(json.dumps(g.as_dict()))
        assert str(g) in statement
        assert up(g.epsilon, 4) in page
        assert f"{run.protocol.observed(view)}<br><small>view {view}</small>" in page
        assert {*run.randomizer.assumptions} <= {*g.assumptions}
    last, messages = metrics_of(folder)[-1], report.guarantees["messages"]
    assert {*run.protocol.assumptions} <= {*messages.assumptions}
    assert (last["epsilon"], last["epsilon_lower"]) == (messages.epsilon, messages.lower)
    assert (last["view"], last["method"]) == ("messages", messages.method)


@pytest.mark.parametrize("simulate", ["aggregate", "messages"])
def test_a_foreign_randomizer_is_trained_reported_read_back_and_audited(tmp_path, simulate):
    randomizer = RoundedNoise(noise_multiplier=0.5, step=0.25)
    run = cj.training.PrivateRun(protocol=ROUNDS, randomizer=randomizer, clip_norm=1.0, simulate=simulate)
    folder = tmp_path / "run"
    report = cj.training.train(run, plain_model(), DATASET, folder, optimizer=optax.sgd(1.0), seed=3)
    assert report.accuracy > 0.8
    assert report.message[1] == pytest.approx(ROUNDS.num_clients**-1.5)
    all_say_the_same(run, report, folder)
    small = dataclasses.replace(
        run, protocol=cj.ShuffledCheckIn(num_clients=3, check_in_prob=0.5, num_rounds=2)
    )
    found = cj.auditing.audit(small, runs=300, seed=1)
    assert found.passed
    assert max(finding.lower for finding in found.findings) > 0.1


def test_the_audit_finds_a_foreign_mechanism_that_is_not_what_it_says():
    class Weak(RoundedMessages):
        def messages(self, keys, clipped):
            return 0.5 * (super().messages(keys, clipped) + clipped)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Claimed(RoundedNoise):
        pass

    cj.training.register_mechanism(Claimed)(Weak)
    run = cj.training.PrivateRun(
        protocol=cj.Shuffle(num_clients=3, num_rounds=2), randomizer=Claimed(noise_multiplier=2.0, step=0.01)
    )
    found = cj.auditing.audit(run, runs=1_000, views=("local",), seed=1)
    assert not found.passed


def test_a_foreign_protocol_is_trained_reported_read_back_and_audited(tmp_path):
    protocol = EverybodyTwice(num_clients=300, num_rounds=6)
    run = cj.training.PrivateRun(protocol=protocol, randomizer=GAUSSIAN, clip_norm=1.0)
    folder = tmp_path / "run"
    report = cj.training.train(
        run,
        plain_model(),
        DATASET,
        folder,
        optimizer=optax.sgd(1.0),
        eval_every=3,
        seed=3,
    )
    assert (report.rounds, report.units) == (12, 6)
    assert report.accuracy > 0.8
    lines = metrics_of(folder)
    assert [line["window"] for line in lines] == [1 + t // 2 for t in range(12)]
    assert all(lines[t]["check_ins"] + lines[t + 1]["check_ins"] == 300 for t in range(0, 12, 2))
    all_say_the_same(run, report, folder)
    half = cj.account(protocol.repeated(3), GAUSSIAN, delta=run.delta)
    assert lines[5]["epsilon"] == half.epsilon < report.guarantees["messages"].epsilon
    found = cj.auditing.audit(run, runs=300, views=("aggregate",), seed=1)
    assert found.passed
    assert type(found.findings[0].protocol) is EverybodyTwice
    assert found.findings[0].protocol.num_clients == 3


# Classes nobody registered.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stricter(cj.PureLDP):
    """A subclass: nobody knows what it changes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lazier(cj.ShuffledCheckIn):
    """Likewise."""


def test_a_subclass_is_never_trained_by_its_parents_mechanism_or_schedule():
    with pytest.raises(
        TypeError, match=r"no mechanism is registered for Stricter.*@register_mechanism\(Stricter\)"
    ):
        cj.training.PrivateRun(protocol=ROUNDS, randomizer=Stricter(epsilon0=1.0))
    with pytest.raises(
        TypeError, match=r"no schedule is registered for Lazier.*@register_schedule\(Lazier\)"
    ):
        cj.training.PrivateRun(protocol=Lazier(num_clients=9, check_in_prob=0.5), randomizer=GAUSSIAN)
    with pytest.raises(TypeError, match="no schedule is registered for str"):
        cj.training.PrivateRun(protocol="shuffle", randomizer=GAUSSIAN)


def test_registering_twice_or_nonsense_is_refused():
    with pytest.raises(ValueError, match="RoundedMessages is registered already"):
        cj.training.register_mechanism(RoundedNoise)(type("Other", (RoundedMessages,), {}))
    assert cj.training.register_mechanism(RoundedNoise)(RoundedMessages) is RoundedMessages
    with pytest.raises(ValueError, match="Halves is registered already"):
        cj.training.register_schedule(EverybodyTwice)(type("Other", (Halves,), {}))
    with pytest.raises(TypeError, match="expected a class of randomizers"):
        cj.training.register_mechanism(GAUSSIAN)(RoundedMessages)
    with pytest.raises(TypeError, match="expected a class of protocols"):
        cj.training.register_schedule(EverybodyTwice)(object)


# The doors themselves.


def test_names_of_the_doors_are_objects_and_no_module_is_shadowed():
    assert callable(cj.training.train)
    assert callable(cj.auditing.audit)
    assert {"train", "PrivateRun", "Model"} <= set(dir(cj.training))
    assert {"audit", "Audit"} <= set(dir(cj.auditing))
    assert {"training", "auditing"} <= set(dir(cj))
    for module in (cj, cj.training, cj.auditing):
        with pytest.raises(AttributeError, match="nothing"):
            module.nothing  # noqa: B018


def test_the_likelihoods_of_the_audit_are_those_of_the_messages():
    # Densities along the update's direction integrate to one, and have the right mean.
    grid = np.linspace(-40, 40, 400_001)
    gaussian = cj.training.PrivateRun(protocol=ROUNDS, randomizer=GAUSSIAN, clip_norm=2.0).mechanism
    for update in (2.0, -2.0, 0.0):
        density = np.exp(gaussian.log_likelihood(grid, update) - grid**2 / 2) / math.sqrt(2 * math.pi)
        assert np.trapezoid(density, grid) == pytest.approx(1.0, rel=1e-9)
        assert np.trapezoid(density * grid, grid) == pytest.approx(update, abs=1e-9)
    pure = cj.training.PrivateRun(
        protocol=ROUNDS, randomizer=cj.PureLDP(epsilon0=1.5), clip_norm=2.0
    ).mechanism
    towards, away = (np.exp(pure.log_likelihood(np.array([along]), 2.0))[0] for along in (1.0, -1.0))
    assert towards / away == pytest.approx(math.exp(1.5))
    assert (towards + away) / 2 == pytest.approx(1.0)
    np.testing.assert_array_equal(pure.log_likelihood(np.array([-1.0, 1.0]), 0.0), 0.0)
    run = cj.training.PrivateRun(protocol=ROUNDS, randomizer=GAUSSIAN)
    assert one_run.affordable(run, "local") is not None
