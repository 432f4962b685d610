"""Names that are nearly right: the error says which one was meant, and right calls are left alone."""

import copy
import pickle

import pytest

import checkin_jax as cj
from checkin_jax import _suggest

RUN = cj.ShuffledCheckIn(num_clients=30, check_in_prob=0.5)
PURE = cj.PureLDP(epsilon0=1.0)


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("n", "num_clients"),
        ("num_client", "num_clients"),
        ("sampling_probability", "check_in_prob"),
        ("steps", "num_rounds"),
        ("NUM_ROUNDS", "num_rounds"),
        ("drop", "drop_out_prob"),
        ("zebra", None),
        ("num", None),
    ],
)
def test_the_nearest_name(word, right):
    legal = ["num_clients", "check_in_prob", "num_rounds", "drop_out_prob"]
    assert _suggest.meant(word, legal) == right
    assert _suggest.did_you_mean(word, legal) == (f"; did you mean {right}?" if right else "")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: cj.ShuffledCheckIn(n=30, check_in_prob=0.5), "has no argument 'n'; did you mean num_clients?"),
        (lambda: cj.ShuffledCheckIn(30, 0.5), "by name: ShuffledCheckIn(num_clients=..., check_in_prob=..."),
        (lambda: cj.PureLDP(2.0), "takes no argument by position; give the others by name: PureLDP(epsilon0"),
        (lambda: cj.Gaussian(sigma=1.0), "did you mean noise_multiplier?"),
        (lambda: cj.training.PrivateRun(max_grad_norm=1.0), "did you mean clip_norm?"),
        (lambda: cj.Rappor(epsilon0=1.0, colour=3), "Rappor has no argument 'colour'; expected epsilon0"),
        (lambda: cj.account(RUN, PURE, target_delta=1e-6), "no argument 'target_delta'; did you mean delta?"),
        (lambda: cj.account(RUN, PURE, 1e-6), "account takes 2 arguments by position; give the others by name"),
        (lambda: cj.account(RUN), "randomizer"),
        (lambda: cj.calibrate(RUN, cj.PureLDP, eps=1.0, delta=1e-6), "did you mean target_epsilon?"),
        (lambda: cj.compare(RUN, PURE, 1e-6), "delta=..."),
        (lambda: cj.rdp(RUN, PURE, order=[2.0]), "did you mean orders?"),
        (lambda: cj.to_event(RUN, PURE, "messages"), "view=..."),
        (lambda: cj.Rates([0.1], count=[3]), "Rates has no argument 'count'; did you mean counts?"),
        (lambda: cj.from_availability([10], coins=0.1), "did you mean coin?"),
        (lambda: cj.random_allocation(1.0, 2, 1e-6), "random_allocation takes 2 arguments by position"),
        (lambda: cj.CheckInAccountant(relation=None), "CheckInAccountant has no argument 'relation'; did you mean"),
        (lambda: cj.CheckInAccountant().get_epsilon(delta=1e-6), "did you mean target_delta?"),
        (lambda: cj.CheckInAccountant().get_delta(epsilon=1.0), "did you mean target_epsilon?"),
        (lambda: cj.CheckInAccountant().guarantee(1e-6, True), "guarantee(target_delta, attack=...)"),
        (lambda: cj.CheckInAccountant().compose(RUN), "did you mean to_event(protocol, randomizer, view=...)?"),
        (lambda: cj.training.PrivateRun(RUN, PURE), "PrivateRun takes no argument by position"),
        (lambda: cj.training.PrivateRun(protocol=RUN, randomiser=PURE), "did you mean randomizer?"),
    ],
)  # fmt: skip
def test_wrong_names_and_positions_are_refused_with_the_right_ones(call, told):
    with pytest.raises(TypeError) as error:
        call()
    assert told in str(error.value)


def test_a_sweep_says_it_too():
    with pytest.raises(ValueError, match=r"num_client=3: no argument of a sweep.*did you mean num_clients\?"):
        cj.sweep(num_client=3)


def test_descriptions_are_made_copied_and_pickled_as_before():
    for made in (RUN, PURE, cj.FixedWindow(num_clients=5, num_slots=2), cj.Gaussian(noise_multiplier=1.0)):
        assert copy.deepcopy(made) == made
        assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError, match="check_in_prob"):
        cj.ShuffledCheckIn(num_clients=5)


def test_a_class_with_arguments_of_its_own_keeps_them():
    class Named(cj.PureLDP):
        def __init__(self, label, epsilon0):
            super().__init__(epsilon0=epsilon0)
            object.__setattr__(self, "label", label)

    assert Named("a", 2.0).epsilon0 == 2.0
    with pytest.raises(TypeError, match="Named has no argument 'lable'; did you mean label"):
        Named(lable="a", epsilon0=2.0)
