"""A randomizer and a protocol of nobody's, through the real trainer and the real accountant: one figure everywhere."""

import dataclasses
import html
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from stand_in import two_clouds

import checkin_jax as cj
from checkin_jax._rounding import up
from checkin_jax.protocols import VIEWS, Cover
from checkin_jax.training.reports import run_page
from checkin_jax.training.schedules import draws


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gridded(cj.Randomizer):
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


@cj.training.register_mechanism(Gridded)
class GriddedMessages(cj.training.Mechanism):
    """What a client of the test sends."""

    @property
    def noise_multiplier(self):
        return self.randomizer.noise_multiplier

    def messages(self, keys, clipped):
        noise = jax.vmap(lambda key: jax.random.normal(key, clipped.shape[1:], jnp.float32))(keys)
        grid = self.randomizer.step * self.clip_norm
        return jnp.round((clipped + self.noise_multiplier * self.clip_norm * noise) / grid) * grid


@dataclasses.dataclass(frozen=True, kw_only=True)
class NightlyCheckIn(cj.CheckInProtocol):
    """Devices that are charged at night check in by a coin; a night is a unit and an update."""

    num_clients: int
    coin: float
    num_nights: int = 1

    _unit = "num_nights"
    title = "nightly check-in"

    @property
    def description(self):
        return f"over {self.num_nights} nights at {self.coin:g}"

    @property
    def assumptions(self):
        return ("every device is charged every night",)

    @property
    def rate(self):
        return self.coin

    @property
    def cover(self):
        return Cover(self.num_clients, self.coin)


@cj.training.register_schedule(NightlyCheckIn)
class Nights(cj.training.Schedule):
    """Every client throws its coin, every night anew."""

    @property
    def check_ins(self):
        return self.protocol.num_clients, self.protocol.coin

    def draw(self, entropy):
        def clients(night):
            rng = draws.generator(entropy, draws.Stream.PARTICIPANTS, night)
            return rng.permutation(np.flatnonzero(rng.random(self.protocol.num_clients) < self.protocol.coin))

        return clients


def test_what_is_trained_is_what_is_accounted_for_and_all_say_the_same(tmp_path):
    protocol = NightlyCheckIn(num_clients=300, coin=0.4, num_nights=6)
    run = cj.training.PrivateRun(
        protocol=protocol, randomizer=Gridded(noise_multiplier=1.5), clip_norm=1.0, delta=1e-4
    )
    model, dataset = two_clouds(300)
    folder = tmp_path / "run"
    report = cj.training.train(run, model, dataset, folder, optimizer=optax.sgd(1.0), eval_every=3, seed=3)
    assert (report.rounds, report.units) == (6, 6)
    assert report.accuracy > 0.9
    read = cj.training.read(folder)
    assert read.run == run
    statement = (folder / "report.txt").read_text()
    saved = json.loads((folder / "report.json").read_text())["guarantees"]
    page = html.unescape(run_page.build(read))
    for view in VIEWS:
        g = cj.account(protocol, run.randomizer, delta=1e-4, view=view)
        assert 0.0 <= g.lower <= g.epsilon < math.inf
        assert report.guarantees[view] == g
        assert saved[view] == json.loads(json.dumps(g.as_dict()))
        assert str(g) in statement
        assert up(g.epsilon, 4) in page
        assert f"{protocol.observed(view)}<br><small>view {view}</small>" in page
        assert "the grid is chosen beforehand" in g.assumptions
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last, messages = lines[-1], report.guarantees["messages"]
    assert (last["epsilon"], last["epsilon_lower"]) == (messages.epsilon, messages.lower)
    assert (last["view"], last["method"]) == ("messages", messages.method)
    half = cj.account(protocol.repeated(3), run.randomizer, delta=1e-4)
    assert lines[2]["epsilon"] == half.epsilon < messages.epsilon
