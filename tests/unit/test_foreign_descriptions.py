"""A randomizer, a protocol and a theorem that the library has never heard of."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting.bounds import table, theorems
from checkin_jax.accounting.bounds.messages.profile_cover import HiddenMessages
from checkin_jax.protocols import Cover
from checkin_jax.randomizers import pure_profile

VIEWS = ("local", "messages", "aggregate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stubborn(cj.Randomizer):
    """Binary randomized response that is asked with probability `ask` and else says nothing of the record."""

    epsilon0: float
    ask: float = 0.5

    variable = cj.FreeVariable("epsilon0", 1e-6, 20.0, 1.3)

    @property
    def description(self):
        return f"randomized response of {self.epsilon0:g} nats, asked with probability {self.ask:g}"

    @property
    def largest_loss(self):
        return self.epsilon0

    def profile(self, loss):
        return self.ask * pure_profile(self.epsilon0, loss)

    @property
    def assumptions(self):
        return ("whether a client is asked does not depend on its record",)

    @property
    def label_laws(self):
        high = self.ask / (1.0 + math.exp(-self.epsilon0))
        low = self.ask / (1.0 + math.exp(self.epsilon0))
        silent = 1.0 - self.ask
        return (
            cj.LabelLaws(
                np.array([high, low, silent]),
                np.array([low, high, silent]),
                "asked at random, all others at one",
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeekdayCheckIn(cj.CheckInProtocol):
    """Shuffled check-in on five days of a week; a week is a unit."""

    num_clients: int
    coin: float
    num_weeks: int = 1

    _unit = "num_weeks"
    title = "weekday check-in"

    @property
    def variables(self):
        return (cj.FreeVariable("coin", 1e-9, 1.0, 0.7),)

    @property
    def description(self):
        return f"over {self.num_weeks} weekdays at {self.coin:g}"

    @property
    def assumptions(self):
        return ("nobody works at weekends",)

    @property
    def rate(self):
        return self.coin

    @property
    def cover(self):
        return Cover(self.num_clients, self.coin)


RUN = cj.ShuffledCheckIn(num_clients=5_000, check_in_prob=0.1, num_rounds=20)
FOREIGN = Stubborn(epsilon0=1.5, ask=0.3)
WEEKS = WeekdayCheckIn(num_clients=5_000, coin=0.1, num_weeks=20)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.thorough(but=1)
def test_a_foreign_randomizer_has_a_bracket_in_every_view(view):
    g = cj.account(RUN, FOREIGN, delta=1e-6, view=view)
    worst = cj.account(RUN, cj.PureLDP(epsilon0=1.5), delta=1e-6, view=view)
    assert 0 <= g.lower <= g.epsilon < worst.epsilon
    # Nobody has said what a sum of such messages tells.
    assert (g.lower == 0) == (view == "aggregate")
    text = str(g)
    assert FOREIGN.description in text
    assert "does not depend on its record" in text
    assert json.loads(json.dumps(g.as_dict()))["randomizer"]["kind"] == "Stubborn"


@pytest.mark.parametrize(
    "wrong", [{"epsilon0": math.nan}, {"epsilon0": -1.0}, {"ask": math.nan}, {"ask": -1.0}]
)
@pytest.mark.parametrize("view", ["local", "messages"])
def test_a_foreign_profile_that_is_none_is_refused(wrong, view):
    with pytest.raises(ValueError, match=r"largest_loss=|Stubborn\.profile: expected values in \[0, 1\]"):
        cj.account(RUN, dataclasses.replace(FOREIGN, **wrong), delta=1e-6, view=view)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claiming(Stubborn):
    """Label laws of its own."""

    claimed: tuple[tuple[float, ...], ...]

    @property
    def label_laws(self):
        target, other = (np.array(each) for each in self.claimed)
        return (cj.LabelLaws(target, other, "as claimed"),)


@pytest.mark.parametrize(
    ("claimed", "told"),
    [
        (((0.6, 0.6), (0.4, 0.4)), "probabilities that add up to 1"),
        (((1.1, -0.1), (0.5, 0.5)), "probabilities that add up to 1"),
        (((0.5, 0.25, 0.25), (0.5, 0.5)), "probabilities that add up to 1"),
        (((0.7, 0.3), (0.3, 0.7)), "leak no more than the profile"),
        # Only the second order of the pair leaks too much.
        (((0.9, 0.1), (0.7, 0.3)), "leak no more than the profile"),
    ],
)
def test_label_laws_that_are_none_or_exceed_the_profile_are_refused(claimed, told):
    """A lower end of theirs would be called certified."""
    with pytest.raises(ValueError, match=rf"Claiming\.label_laws, 'as claimed': expected .*{told}"):
        cj.account(RUN, Claiming(epsilon0=1.5, ask=0.3, claimed=claimed), delta=1e-6, bounds="fast")


def test_the_lower_end_of_a_foreign_randomizer_is_its_own_not_randomized_response():
    """3-ary or binary randomized response would leak more than this mechanism can."""
    g = cj.account(RUN, FOREIGN, delta=1e-6)
    worst = cj.account(RUN, cj.PureLDP(epsilon0=1.5), delta=1e-6)
    assert g.lower_method == "asked at random, all others at one"
    assert worst.lower > g.epsilon


@pytest.mark.parametrize(
    "protocol",
    [
        cj.Shuffle(num_clients=500),
        cj.FixedWindow(num_clients=500, num_slots=100),
        cj.FixedWindow(num_clients=500, num_slots=100, empty_slots="visible"),
        cj.SlidingWindow(num_clients=500, window=50),
        cj.AveragedUpdates(num_clients=500, num_slots=5, check_in_prob=0.5),
        WEEKS,
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize(
    "randomizer", [FOREIGN, cj.Laplace(epsilon0=1.0), cj.ApproximateLDP(epsilon0=1.0, delta0=1e-9)]
)
@pytest.mark.thorough(but=2)
def test_foreign_messages_under_every_protocol(protocol, randomizer):
    for view in VIEWS:
        g = cj.account(protocol, randomizer, delta=1e-5, view=view, bounds="fast")
        assert 0 <= g.lower <= g.epsilon < math.inf


def test_a_foreign_protocol_gives_what_its_facts_say():
    pure = cj.PureLDP(epsilon0=1.0)
    same = cj.ShuffledCheckIn(num_clients=5_000, check_in_prob=0.1, num_rounds=20)
    ours, theirs = (cj.account(p, pure, delta=1e-6, bounds="fast") for p in (same, WEEKS))
    assert (ours.lower, ours.epsilon) == (theirs.lower, theirs.epsilon)
    assert "nobody works at weekends" in str(theirs)
    assert "over 20 weekdays" in str(theirs)


@pytest.mark.thorough
def test_foreign_classes_are_swept_and_calibrated():
    found = cj.sweep(
        protocol=WeekdayCheckIn,
        randomizer=Stubborn,
        num_clients=[1_000, 5_000],
        axes={"coin": 0.1, "num_weeks": [1, 20], "ask": 0.3},
        epsilon0=1.5,
        delta=1e-6,
        bounds="fast",
    )
    assert list(found["error"]) == [""] * 4
    alone = cj.account(WEEKS, FOREIGN, delta=1e-6, bounds="fast")
    assert found["epsilon"][3] == pytest.approx(alone.epsilon, rel=1e-9)
    answer = cj.calibrate(RUN, FOREIGN, target_epsilon=0.05, delta=1e-6, free="epsilon0", bounds="fast")
    assert answer.guarantee.epsilon <= 0.05
    assert isinstance(answer.randomizer, Stubborn)
    assert answer.randomizer.ask == 0.3
    assert answer.value == answer.randomizer.epsilon0
    coin = cj.calibrate(WEEKS, FOREIGN, target_epsilon=0.05, delta=1e-6, free="coin", bounds="fast")
    assert coin.guarantee.epsilon <= 0.05


def test_foreign_classes_are_composed_saved_and_restored():
    accountant = cj.CheckInAccountant(bounds="fast").compose(cj.to_event(WEEKS, FOREIGN))
    alone = cj.account(WEEKS, FOREIGN, delta=1e-6, bounds="fast")
    assert accountant.get_epsilon(1e-6) == alone.epsilon
    state = json.loads(json.dumps(accountant.state_dict()))
    fresh = cj.CheckInAccountant(bounds="fast")
    fresh.load_state_dict(state)
    assert fresh.get_epsilon(1e-6) == alone.epsilon
    assert FOREIGN.description in str(accountant)


def test_a_description_that_json_cannot_hold_is_accounted_for_but_not_saved():
    known = cj.KnownProfile(function=lambda loss: pure_profile(1.0, loss), largest_loss=1.0)
    g = cj.account(RUN, known, delta=1e-6, bounds="fast")
    assert 0 < g.lower < g.epsilon
    assert any("given profile" in assumed for assumed in g.assumptions)
    json.dumps(g.as_dict())
    accountant = cj.CheckInAccountant(bounds="fast").compose(cj.to_event(RUN, known))
    with pytest.raises(ValueError, match="KnownProfile"):
        accountant.state_dict()


@dataclasses.dataclass(frozen=True)
class Told:
    """The profile of one message, times a share."""

    share: float
    epsilon0: float

    name = "H"
    witnesses = ()

    @property
    def largest_loss(self):
        return self.epsilon0

    def upper(self, loss):
        return self.share * pure_profile(self.epsilon0, np.asarray(loss)) * (1 + 1e-12)


@dataclasses.dataclass(frozen=True)
class Renamed(Told):
    """T1+ by another name."""

    bound: object = None

    def upper(self, loss):
        return self.bound.upper(loss)


class Stopped(Told):
    """The same, whose largest loss is said to be 0."""

    largest_loss = 0.0


def foreign(build, label="H"):
    return table.Bound(
        label, "a message that is not sent tells nothing", "nowhere", 0.001, build, assumes=("H holds",)
    )


def told(unit, share=None):
    """True if share is None, and hardly a theorem: one message by itself, sent at the check-in rate."""
    if unit.cover is None:
        return None
    return Told(unit.cover.rate if share is None else share, unit.randomizer.largest_loss)


def renamed(unit):
    found = theorems.hexagon(unit)
    return found and Renamed(1.0, unit.randomizer.largest_loss, found)


@pytest.fixture
def register():
    """`table.register`, undone at the end."""
    undo = []
    yield lambda bound: undo.append(table.register(bound))
    for remove in undo:
        remove()


@pytest.mark.parametrize("rounds", [1, 20])
class TestForeignTheorems:
    CROWD = cj.ShuffledCheckIn(num_clients=2_000, check_in_prob=0.5)
    MESSAGE = cj.PureLDP(epsilon0=1.0)

    def ask(self, rounds, **how):
        return cj.account(self.CROWD.repeated(rounds), self.MESSAGE, delta=1e-4, **how)

    def test_one_call_adds_it(self, register, rounds):
        """The smallest of all that apply is taken, and the statement says what it states and needs."""
        before = self.ask(rounds)
        register(foreign(told))
        g, best = self.ask(rounds, bounds="H"), self.ask(rounds)
        assert "H: a message that is not sent tells nothing [nowhere]" in str(g)
        assert "H holds" in g.assumptions
        assert (best.epsilon, best.method) == (before.epsilon, before.method)
        assert g.epsilon > best.epsilon
        with pytest.raises(ValueError, match="expected words that apply here"):
            cj.account(cj.FixedWindow(num_clients=9, num_slots=9), self.MESSAGE, delta=1e-2, bounds="H")

    def test_it_is_named_where_it_is_the_smallest(self, register, rounds):
        register(foreign(renamed))
        g = self.ask(rounds, bounds=("clones", "H"))
        assert g.method.startswith("H, ")
        assert g.epsilon < self.ask(rounds, bounds="clones").epsilon

    def test_one_below_what_is_leaked_is_found_out(self, register, rounds):
        register(foreign(functools.partial(told, share=1e-4)))
        with pytest.raises(ArithmeticError, match=r"lower=.* is above upper="):
            self.ask(rounds)

    @pytest.mark.parametrize(
        ("wrong", "told"),
        [
            (Told(math.nan, 1.0), "bound 'H': expected a number of at least 0 for each loss"),
            (Told(-1.0, 1.0), "bound 'H': expected a number of at least 0 for each loss"),
            (Stopped(1.0, 1.0), "bound 'H': expected 0 at largest_loss=0.0, not 0.4"),
            (Told(1.0, math.nan), "bound 'H': largest_loss=nan"),
        ],
    )
    def test_one_without_meaning_is_refused_and_removes_no_other(self, register, rounds, wrong, told):
        register(foreign(lambda unit: wrong))
        with pytest.raises(ValueError, match=told):
            self.ask(rounds)

    def test_it_can_be_taken_out(self, rounds):
        before = self.ask(rounds)
        table.register(foreign(functools.partial(told, share=1e-4)))()
        again = self.ask(rounds)
        assert (again.epsilon, again.theorems) == (before.epsilon, before.theorems)


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        ("H", TypeError),
        (foreign(told, "clones"), ValueError),
        (foreign(told, "best"), ValueError),
        (foreign(told, "two words"), ValueError),
        (foreign(told, ""), ValueError),
    ],
)
def test_bounds_without_a_word_of_their_own_are_refused(bound, error):
    known = table.words()
    with pytest.raises(error, match="expected"):
        table.register(bound)
    assert table.words() == known


def test_words_that_do_not_apply_are_refused_with_those_that_do():
    with pytest.raises(ValueError, match="expected words that apply here: clones, hexagon"):
        cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="allocation")
    with pytest.raises(ValueError, match="bounds='tight'"):
        cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="tight")
    with pytest.raises(ValueError, match=r"bounds='T1\+': .* clones, .*; T1\+ is a case of 'hexagon'"):
        cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds="T1+")
    with pytest.raises(TypeError, match="bounds=1"):
        cj.account(RUN, cj.PureLDP(epsilon0=1.0), delta=1e-6, bounds=1)  # pyright: ignore


def test_strangers_are_refused():
    with pytest.raises(TypeError, match="expected a CheckInProtocol"):
        cj.account("shuffle", cj.PureLDP(epsilon0=1.0), delta=1e-6)  # pyright: ignore
    with pytest.raises(TypeError, match="expected a Randomizer"):
        cj.account(RUN, 1.0, delta=1e-6)  # pyright: ignore


@pytest.mark.thorough
def test_the_law_of_hidden_messages_is_computed_once(monkeypatch):
    """T* and the lower ends by label laws look at the same sum."""
    asked = []
    hidden = HiddenMessages.hidden
    monkeypatch.setattr(HiddenMessages, "hidden", lambda self: (asked.append(1), hidden(self))[1])
    g = cj.account(RUN, Stubborn(epsilon0=1.5, ask=0.3), delta=1e-6, bounds=("clones", "profile"))
    assert 0.0 < g.lower <= g.epsilon
    assert len(asked) == 1
