"""The accountant, the client mod and the strategy inside of real flwr, its messages and its own strategies."""

import math

import numpy as np
import pytest
from flwr.app import (  # pyright: ignore[reportMissingImports]
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp import (  # pyright: ignore[reportMissingImports]
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import (  # pyright: ignore[reportMissingImports]
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from flwr.supercore.task_identity import TaskIdentity  # pyright: ignore[reportMissingImports]

import checkin_jax as cj
from checkin_jax.flower import Accountant, ClientMod
from train.flower_strategy import CheckInStrategy

CONFIG = {
    "target_delta": 1e-5,
    "population_size": 40,
    "neighboring_relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "sampling_method": SamplingMethod.NO_AMPLIFICATION,
}
NOISE = cj.Gaussian(noise_multiplier=1.0)
RUN = cj.ShuffledCheckIn(num_clients=40, check_in_prob=0.5, num_rounds=50)


@pytest.fixture(autouse=True)
def _a_task(monkeypatch):
    """What flwr sets in the process of a ServerApp."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


class Grid:
    """flwr's Grid in this process: every message goes to the client app, with a context for each node."""

    def __init__(self, app, nodes):
        self.app, self.seen = app, []
        self.contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            for node in range(1, nodes + 1)
        }

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for number, message in enumerate(messages):
            message.metadata._message_id = f"{number}"
            node = message.metadata.dst_node_id
            replies.append(self.app(message, self.contexts[node]))
        self.seen += replies
        return replies


def client_app(mods, step=2.0, fail=False):
    app = ClientApp(mods=mods)

    @app.train()
    def train(message, context):
        if fail:
            raise RuntimeError("this client's data is odd")
        arrays = next(iter(message.content.array_records.values()))
        new = {key: Array(value + step) for key, value in zip(arrays.keys(), arrays.to_numpy_ndarrays())}
        metrics = MetricRecord({"num-examples": 1, "loss": 3.25})
        return Message(RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 3.25})}), reply_to=message)

    return app


def initial():
    return ArrayRecord({"w": Array(np.zeros((20, 10), np.float32)), "b": Array(np.zeros(3))})


def mod(**changes):
    settings = {"clip_norm": 0.5, "check_in_prob": 0.5, "num_rounds": 50}
    return ClientMod(NOISE, **(settings | changes))


def private_run(target_epsilon=None):
    return cj.training.PrivateRun(
        protocol=RUN, randomizer=NOISE, delta=1e-5, target_epsilon=target_epsilon, target_view="aggregate"
    )


def test_it_is_an_accountant_of_theirs_and_below_renyi():
    ours: PrivacyAccountant = Accountant(PrivacyConfig(**CONFIG, max_epsilon=3.0))
    theirs = RdpAccountant(PrivacyConfig(**CONFIG, max_epsilon=3.0))
    event = GaussianPrivacyEvent(noise_multiplier=5.0, sample_size=40, population_size=40)
    for each in (ours, theirs):
        each.compose(event, 30)
    spent = ours.get_privacy_spent()
    assert isinstance(spent, PrivacySpent)
    assert spent.epsilon == ours.get_epsilon(1e-5)
    assert 0.85 * theirs.get_epsilon(1e-5) < spent.epsilon < theirs.get_epsilon(1e-5)
    assert spent.num_releases == 30
    assert ours.would_exceed(event)
    without = CONFIG | {
        "sampling_method": SamplingMethod.WITHOUT_REPLACEMENT,
        "neighboring_relation": NeighboringRelation.REPLACE_ONE,
    }
    with pytest.raises(ValueError, match="without-replacement"):
        Accountant(PrivacyConfig(**without))


def test_their_fixed_clipping_strategy_halts_on_our_epsilon():
    accountant = Accountant(PrivacyConfig(**CONFIG, max_epsilon=1.0))
    wrapped = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), 8.0, 0.5, 40, accountant=accountant
    )
    with pytest.raises(PrivacyBudgetExhausted):
        wrapped.start(Grid(client_app([]), 40), initial(), num_rounds=50)
    assert 0 < accountant.num_releases < 50
    assert accountant.get_epsilon(1e-5) <= 1.0
    event = GaussianPrivacyEvent(noise_multiplier=8.0, sample_size=40, population_size=40)
    accountant.compose(event)
    assert accountant.get_epsilon(1e-5) > 1.0


def test_a_run_of_check_ins_ends_with_its_budget_and_learns():
    chosen = CheckInStrategy(private_run(target_epsilon=3.0))
    assert isinstance(chosen, Strategy)
    grid = Grid(client_app([mod()]), 40)
    result = chosen.start(grid, initial(), num_rounds=50)
    rounds = chosen.num_rounds
    assert 1 <= rounds < 50
    assert len(result.train_metrics_clientapp) == rounds
    last = result.train_metrics_clientapp[rounds]
    assert last["epsilon"] == cj.account(RUN.repeated(rounds), NOISE, delta=1e-5, view="aggregate").epsilon
    assert last["epsilon"] <= 3.0
    assert chosen.guarantee(rounds + 1).epsilon > 3.0
    with pytest.raises(PrivacyBudgetExhausted):
        chosen.configure_train(rounds + 1, initial(), ConfigRecord(), grid)
    # Everybody's clipped update points the same way: 203 coordinates, 0.5 in all.
    moved = np.concatenate([each.ravel() for each in result.arrays.to_numpy_ndarrays()])
    noise = 0.5 / math.sqrt(0.5 * 40 * rounds)
    assert moved.mean() / rounds == pytest.approx(0.5 / math.sqrt(203), abs=6 * noise / math.sqrt(203) + 0.01)
    sizes = np.array([each["messages"] for each in result.train_metrics_clientapp.values()])
    assert sizes.mean() == pytest.approx(20, abs=6 * math.sqrt(10 / rounds))
    with pytest.raises(ValueError, match="39 nodes"):
        chosen.configure_train(1, initial(), ConfigRecord(), Grid(client_app([mod()]), 39))


def test_what_leaves_a_device_is_a_message_or_nothing():
    chosen = CheckInStrategy(private_run())
    for app in (client_app([mod()]), client_app([mod()], step=1e9), client_app([mod()], fail=True)):
        grid = Grid(app, 40)
        chosen.start(grid, initial(), num_rounds=2)
        empty = [reply for reply in grid.seen if not reply.content]
        sent = [reply for reply in grid.seen if reply.content]
        assert len(empty) + len(sent) == 80
        assert len(sent) == pytest.approx(40, abs=27)
        for reply in sent:
            assert not reply.has_error()
            assert dict(reply.content["metrics"]) == {"num-examples": 1}
            flat = np.concatenate([x.ravel() for x in reply.content["arrays"].to_numpy_ndarrays()])
            assert flat.dtype == np.float32
            # Norm of noise of 0.5 in 203 coordinates, and 0.5 at most besides.
            assert 4.5 < np.linalg.norm(flat) < 10.0


def test_other_questions_get_no_answer_and_rounds_end_on_the_device():
    grid = Grid(client_app([mod(check_in_prob=1.0, num_rounds=2)]), 1)
    content = RecordDict({"arrays": initial(), "config": ConfigRecord()})
    asked = [
        Message(content, dst_node_id=1, message_type=kind) for kind in ("evaluate", "train", "train", "train")
    ]
    replies = grid.send_and_receive(asked)
    assert [bool(reply.content) for reply in replies] == [False, True, True, False]
