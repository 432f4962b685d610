"""Anything may be passed to the public functions: a correct result, or one clear refusal (see fuzzing.py).

Commands, files and training are in test_fuzz_commands.py. Where a call answers, its bounds are held against others that
are on the right side of them whatever the setting: a lower end never exceeds the upper end of a view that sees more, of
a smaller delta or of more repetitions.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import re
import tempfile
from pathlib import Path

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzzing import (
    PROPER,
    Refused,
    any_protocol,
    any_randomizer,
    arguments,
    call,
    case,
    fields,
    odd,
    spread,
    try_few,
    try_many,
    whole,
)
from hypothesis import strategies as st

import checkin_jax as cj
from checkin_jax import flower, protocols
from checkin_jax.accounting import published
from checkin_jax.accounting.attack import AttackTerms, Ends
from checkin_jax.accounting.bounds.table import Bound, register
from checkin_jax.accounting.certificate import certificate
from checkin_jax.accounting.compare import ComparedBound, compare
from checkin_jax.accounting.interop.composed_guarantee import LedgerGuarantee
from checkin_jax.accounting.published.formula import PublishedBound
from checkin_jax.auditing import scores
from checkin_jax.auditing.auditor import audit
from checkin_jax.auditing.trials import small
from checkin_jax.sweeps import results
from checkin_jax.sweeps import settings as sweep_settings
from checkin_jax.sweeps.formulas import BOUNDS
from checkin_jax.training.examples.networks import ImageTraining
from checkin_jax.training.run import PrivateRun

CASES = {}
ROUNDING = 1e-9


def check_guarantee(g):
    assert 0.0 <= g.lower <= g.epsilon
    assert not math.isnan(g.epsilon)
    assert not math.isnan(g.numerical_error)
    assert g.validity == "certified"
    json.dumps(g.as_dict(), allow_nan=False)
    assert "nan" not in str(g)


RANDOMIZERS = (
    cj.PureLDP,
    cj.Gaussian,
    cj.L2Mechanism,
    cj.KaryResponse,
    cj.HadamardResponse,
    cj.Rappor,
    cj.Laplace,
    cj.OneBit,
    cj.ApproximateLDP,
)
constructions = st.sampled_from((*protocols.PROTOCOLS, *RANDOMIZERS)).flatmap(
    lambda kind: st.tuples(st.just(kind), arguments(fields(kind), 2))
)


@case(
    CASES,
    constructions,
    covers=(
        *protocols.PROTOCOLS,
        *RANDOMIZERS,
        cj.CheckInProtocol,
        cj.Randomizer,
        cj.FreeVariable,
        cj.LabelLaws,
    ),
    few=200,
    many=20_000,
)
def constructing(drawn):
    kind, values = drawn
    built = call(kind, **values)
    assert not any(isinstance(value, float) and math.isnan(value) for value in dataclasses.astuple(built))
    assert kind(**dataclasses.asdict(built)) == built


profiles = st.sampled_from(
    [
        lambda loss: 0.5 * np.exp(-loss),
        lambda loss: 2.0 + loss,
        lambda loss: np.full_like(loss, np.nan),
        lambda loss: 0.1,
    ]
)


@case(CASES, profiles, st.one_of(st.just(math.inf), odd), covers=(cj.KnownProfile,), few=30, many=1_000)
def knowing_a_profile(function, largest_loss):
    known = call(functools.partial(cj.KnownProfile, function=function), largest_loss=largest_loss)
    check_guarantee(cj.account(cj.Shuffle(num_clients=9), known, delta=0.1, bounds="fast"))


@case(CASES, arguments(["epsilon0"], 2, delta0=spread(1e-300, 0.999)), few=30, many=2_000)
def noise_of_local_privacy(values):
    noise = call(cj.Gaussian.from_local, **values)
    assert 0.0 < noise.noise_multiplier < math.inf


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta", "view", "neighboring_relation"], 1),
    st.sampled_from(["delta", "view", "repeats"]),
    covers=(cj.account, cj.Guarantee),
    few=8,
    many=1_500,
)
def accounting(protocol, randomizer, values, other):
    g = call(cj.account, protocol, randomizer, **values)
    check_guarantee(g)
    if other == "delta":
        less = cj.account(protocol, randomizer, **{**values, "delta": min(1.0, 10.0 * g.delta)})
    elif other == "view":
        least = "messages" if g.view == "local" else "aggregate"
        less = cj.account(protocol, randomizer, **{**values, "view": least})
    else:
        repeats = max(1, protocol.num_units // 2)
        less = cj.account(protocol.repeated(repeats), randomizer, **values)
    assert less.lower <= g.epsilon * (1.0 + ROUNDING)


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta", "view", "neighboring_relation"], 1),
    covers=(certificate,),
    few=3,
    many=150,
)
def certifying(protocol, randomizer, values):
    g = call(cj.account, protocol, randomizer, bounds="fast", **values)
    found = call(certificate, g)
    assert float.fromhex(found["claim"]["epsilon"]) == g.epsilon
    verify = pytest.importorskip("checkin_jax.verify", reason="python-flint is not installed")
    limits = "too large|more than|beyond|expected (a number in|from)"
    try:
        verify.check(verify.read(json.dumps(found).encode()))
    except verify.Malformed as error:  # of a form that is right, but beyond a limit
        if not re.search(limits, str(error)):
            raise


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta"], 1),
    st.floats(0.0, 1.0),
    spread(1e-9, 0.999),
    covers=(AttackTerms, Ends),
    few=2,
    many=120,
)
def attacking(protocol, randomizer, values, fpr, prior):
    g = call(cj.account, protocol, randomizer, bounds="fast", **values)
    for ends in (g.advantage, g.tpr(fpr), g.mu, g.posterior(prior)):
        assert 0.0 <= ends.lower <= ends.upper
    assert g.tpr(fpr).upper >= fpr


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta", "view"], 1),
    covers=(cj.account,),
    few=2,
    many=120,
)
def accounting_tightly(protocol, randomizer, values):
    tight = call(cj.account, protocol, randomizer, bounds="best", **values)
    check_guarantee(tight)
    plain = cj.account(protocol, randomizer, bounds="fast", **values)
    assert tight.epsilon <= plain.epsilon * (1.0 + ROUNDING)
    assert max(tight.lower, plain.lower) <= tight.epsilon


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta", "view"], 1),
    st.integers(1, 10**10),
    covers=(
        cj.CheckInAccountant,
        LedgerGuarantee,
        cj.to_event,
    ),
    few=10,
    many=800,
)
def composing(protocol, randomizer, values, count):
    event = call(cj.to_event, protocol, randomizer, view=values["view"])
    accountant = cj.CheckInAccountant(bounds="fast").compose(event)
    found = call(accountant.get_epsilon, values["delta"])
    assert found >= call(accountant.get_lower_epsilon, values["delta"]) >= 0.0
    stated = accountant.guarantee(values["delta"])
    assert (stated.epsilon, stated.validity) == (found, "certified")
    assert str(stated).count("\n  composed   ") == 1
    again = cj.CheckInAccountant(bounds="fast")
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.get_epsilon(values["delta"]) == found
    targets = {"target_epsilon": found, "target_delta": values["delta"]}
    # What is beyond the range is refused, or said to exceed: never an answer that more costs less.
    assert call(accountant.would_exceed, event, count, **targets) or math.isinf(found) or not found


@case(
    CASES,
    any_randomizer,
    arguments([], 1, target_epsilon=PROPER["target_epsilon"], target_delta=spread(1e-300, 0.999)),
    arguments([], 1, min_reports=whole(1e6), count=whole(1e6)),
    covers=(cj.DeviceBudget,),
    few=6,
    many=800,
)
def keeping_a_budget(randomizer, target, message):
    device = call(cj.DeviceBudget, **target)
    if call(device.may_send, randomizer, **message):
        device.send(randomizer, **message)
        assert 0.0 <= device.spent <= 1.0 + 1e-12
    else:
        with pytest.raises(ValueError, match="expected messages within the budget"):
            device.send(randomizer, **message)
    again = cj.DeviceBudget(**target, state=json.loads(json.dumps(device.state_dict())))
    assert again.spent == device.spent


@case(
    CASES,
    st.dictionaries(st.text(max_size=3), st.one_of(st.tuples(any_protocol, any_randomizer), odd), max_size=2),
    arguments(["delta", "view"], 1),
    covers=(cj.account_groups,),
    few=6,
    many=400,
)
def accounting_for_groups(groups, values):
    found = call(cj.account_groups, groups, bounds="fast", **values)
    assert set(found) == set(groups)
    assert list(found.values()) == sorted(found.values(), key=lambda g: -g.epsilon)
    for g in found.values():
        check_guarantee(g)


events = st.builds(
    cj.CheckInDpEvent,
    st.one_of(any_protocol, any_protocol.map(lambda protocol: protocol.repeated(1)), odd),
    st.one_of(any_randomizer, odd),
    st.one_of(PROPER["view"], odd),
)


@case(CASES, events, covers=(cj.CheckInDpEvent,), few=100, many=8_000)
def supporting(event):
    accountant = cj.CheckInAccountant(bounds="fast")
    if not accountant.supports(event):
        raise Refused
    accountant.compose(event)
    json.dumps(accountant.state_dict(), allow_nan=False)


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["target_epsilon", "delta", "view"], 1),
    st.sampled_from(
        [
            None,
            *(name for name, kind in sweep_settings.KINDS.items() if kind is int),
            "check_in_prob",
            "epsilon0",
            "gossip",
        ]
    ),
    covers=(cj.calibrate, cj.Calibration),
    few=6,
    many=500,
)
def calibrating(protocol, randomizer, values, free):
    found = call(cj.calibrate, protocol, randomizer if free else type(randomizer), free=free, **values)
    check_guarantee(found.guarantee)
    assert found.guarantee.epsilon <= values["target_epsilon"]


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta", "view", "neighboring_relation"], 1),
    covers=(cj.sensitivities, cj.Sensitivities),
    few=4,
    many=200,
)
def differentiating(protocol, randomizer, values):
    found = call(cj.sensitivities, protocol, randomizer, **values)
    check_guarantee(found.guarantee)
    slopes = [end for slope in found.slopes.values() for end in slope if end is not None]
    assert all(map(math.isfinite, slopes))
    assert "nan" not in str(found)


@case(
    CASES,
    st.tuples(spread(1.0, 1e12), spread(1e-9, 1.0), spread(1e-6, 50.0)),
    covers=(cj.numerics.theorem_1_rdp, cj.numerics.rdp_of_pure_dp, cj.numerics.epsilon_from_log_moments),
    few=4,
    many=200,
)
def functional_kernels(setting):
    """None checks its arguments: these are legal."""
    clients, rate, epsilon0 = setting
    orders = np.array([2.0, 3.0, 16.0])
    with jax.enable_x64(True):
        rdp = np.asarray(cj.numerics.theorem_1_rdp(np.floor(clients), rate, epsilon0, orders, size=64))
        most = np.asarray(cj.numerics.rdp_of_pure_dp(epsilon0, orders))
        found = cj.numerics.epsilon_from_log_moments(
            jnp.asarray(orders), jnp.asarray((orders - 1.0) * most), jnp.float64(-14.0)
        )
    assert (rdp >= 0.0).all()
    assert (most <= epsilon0 * (1.0 + 1e-9)).all()
    assert (np.asarray(found) >= 0.0).all()


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["view", "value_discretization_interval", "tail_mass", "neighboring_relation"], 1),
    spread(1e-12, 0.5),
    covers=(cj.to_pld,),
    few=6,
    many=300,
)
def distributing(protocol, randomizer, values, delta):
    found = call(cj.to_pld, protocol, randomizer, **values).get_epsilon_for_delta(delta)
    relation = {name: values[name] for name in ("view", "neighboring_relation")}
    one = cj.account(protocol.repeated(1), randomizer, delta=delta, **relation)
    assert found >= one.lower * (1.0 - ROUNDING)


allocations = arguments(
    ["delta", "neighboring_relation"],
    1,
    noise_multiplier=st.one_of(
        spread(1e-2, 1e7), spread(0.5, 10.0), spread(0.05, 1e3).map(dp_accounting.LaplaceDpEvent)
    ),
    num_steps=st.sampled_from([1, 2, 10, 100, 1_000, 10**10]),
    num_selected=st.one_of(st.just(1), whole(1e3)),
    num_epochs=st.one_of(st.just(1), whole(1e10)),
    unfinished_steps=st.one_of(st.just(0), st.just(0), whole(1e3)),
    sampling_prob=st.one_of(st.just(1.0), st.just(1.0), spread(1e-10, 2.0)),
)


@case(CASES, allocations, covers=(cj.random_allocation,), few=6, many=400)
def allocating(values):
    g = call(cj.random_allocation, **values)
    assert 0.0 <= g.lower <= g.epsilon
    assert "nan" not in str(g)


@case(
    CASES,
    allocations,
    odd,
    covers=(cj.RandomAllocationDpEvent, cj.UnfinishedAllocationDpEvent),
    few=60,
    many=4_000,
)
def allocating_an_event(values, inner):
    noise = values["noise_multiplier"]
    if isinstance(noise, float):
        noise = dp_accounting.GaussianDpEvent(noise)
    plain = noise if isinstance(noise, dp_accounting.DpEvent) else inner
    event = cj.RandomAllocationDpEvent(plain, values["num_selected"], values["num_steps"])
    if values["unfinished_steps"]:
        event = cj.UnfinishedAllocationDpEvent(event, values["unfinished_steps"])
    accountant = cj.CheckInAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    if not accountant.supports(event):
        raise Refused
    json.dumps(accountant.compose(event).state_dict(), allow_nan=False)


local_noise = arguments(
    ["delta"],
    1,
    clipping_norm=spread(1e-9, 1e9),
    sensitivity=st.one_of(spread(1e-9, 1e9), st.just(0.0)),
    epsilon=spread(1e-9, 1e9),
)


@case(CASES, local_noise, covers=(flower.local_dp_worth, flower.LocalDpWorth), few=40, many=3_000)
def weighing_local_noise(values):
    worth = call(flower.local_dp_worth, **values)
    assert worth.epsilon_zero <= worth.epsilon_replaced * (1.0 + ROUNDING)
    assert not math.isnan(worth.epsilon_replaced)
    assert 0.0 <= worth.delta_replaced <= 1.0
    json.dumps(worth.as_dict(), allow_nan=False)
    assert "nan" not in str(worth)


mods = arguments(["check_in_prob", "num_rounds"], 1, randomizer=any_randomizer, clip_norm=spread(1e-9, 1e9))


@case(CASES, mods, odd, covers=(flower.ClientMod, flower.Accountant), few=60, many=4_000)
def making_parts_for_flower(values, config):
    with contextlib.suppress(Refused):
        call(flower.Accountant, config)
        raise AssertionError("an accountant of anything")
    values = dict(values)
    assert call(flower.ClientMod, values.pop("randomizer"), **values).num_rounds >= 1


some_matrix = st.one_of(
    odd,
    st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3), max_size=3),
    st.lists(st.floats(0.01, 0.99), min_size=2, max_size=4).map(lambda heads: [[p, 1.0 - p] for p in heads]),
)


@case(CASES, some_matrix, covers=(cj.FiniteMechanism,), few=80, many=4_000)
def giving_a_mechanism_by_its_matrix(matrix):
    mechanism = call(cj.FiniteMechanism, probabilities=matrix)
    assert 0.0 < mechanism.epsilon0 < math.inf
    assert mechanism == cj.FiniteMechanism(probabilities=mechanism.probabilities)


@case(CASES, st.text("abc", min_size=1).map(Path), covers=(cj.training.mnist,), few=20, many=200)
def reading_images_that_are_not_there(folder):
    call(cj.training.mnist, folder)


@case(CASES, odd, covers=(Bound, register), few=40, many=2_000)
def registering_a_theorem(bound):
    with contextlib.suppress(Refused):
        call(register, bound)
        raise AssertionError("a theorem of anything")


@case(CASES, odd, covers=(cj.training.batch_selection,), few=40, many=2_000)
def selecting_batches(protocol):
    call(cj.training.batch_selection, protocol)


orders = st.one_of(
    st.lists(spread(1.0001, 1e6), min_size=1, max_size=4),
    st.lists(odd, max_size=3),
    odd,
)


@case(
    CASES,
    any_protocol,
    any_randomizer,
    orders,
    spread(1e-12, 0.5),
    covers=(cj.rdp, cj.rdp_lower, cj.epsilon_by_rdp),
    few=6,
    many=800,
)
def renyi(protocol, randomizer, at, delta):
    found = call(cj.rdp, protocol, randomizer, at)
    assert found.shape == (len(at),)
    assert (found >= call(cj.rdp_lower, protocol, randomizer, at)).all()
    # Mironov's conversion: never below what a randomizer is shown to leak.
    converted = found + np.log(1.0 / delta) / (np.asarray(at, dtype=np.float64) - 1.0)
    lower = cj.account(protocol, randomizer, delta=delta, bounds="fast").lower
    assert (converted >= lower * (1.0 - ROUNDING)).all()
    epsilon, order = call(cj.epsilon_by_rdp, protocol, randomizer, delta=delta)
    assert epsilon >= lower * (1.0 - ROUNDING)
    assert order > 1.0


@case(
    CASES,
    any_protocol,
    any_randomizer,
    arguments(["delta"], 1),
    covers=(compare, ComparedBound),
    few=2,
    many=60,
)
def comparing(protocol, randomizer, values):
    upper, lower, *rest = call(compare, protocol, randomizer, **values)
    assert lower.epsilon <= upper.epsilon
    for row in rest:
        assert not math.isnan(row.epsilon)
        # Published bounds that stand never contradict what is certified.
        if row.validity == "published" and row.direction == "upper":
            assert row.epsilon >= lower.epsilon * (1.0 - ROUNDING), row


@case(
    CASES, st.one_of(odd, st.just("clones-2021")), covers=(cj.literature, cj.PublishedValue), few=20, many=200
)
def reading_published_values(table):
    for value in call(cj.literature, "" if table is None else table):  # all tables take half a minute
        assert value.lower <= value.epsilon


def value_of(name: str) -> st.SearchStrategy:
    if name == "order":
        return spread(1.01, 4096.0)
    return PROPER[name] if name in PROPER else st.sampled_from(BOUNDS)


# Axes of sweeps as people write them.
def axis_of(name: str) -> st.SearchStrategy:
    values = value_of(name)
    if sweep_settings.KINDS[name] is str:
        lists = st.lists(values, min_size=1, max_size=3)
        return st.one_of(values, lists, lists.map(",".join))
    lists = st.lists(values, min_size=1, max_size=3)
    ends = st.tuples(values, values, st.sampled_from(["log", "lin"]), st.integers(2, 4))
    ranges = ends.map(lambda part: f"{part[0]}:{part[1]}:{part[2]}{part[3]}")
    return st.one_of(values, lists, values.map(str), lists.map(lambda held: ",".join(map(str, held))), ranges)


not_an_axis = st.one_of(
    odd,
    st.text(alphabet="0123456789:.,-elogin ", max_size=12).filter(lambda text: not re.search(r"\d{3}", text)),
    st.sampled_from(
        ["1:2:log0", "1:2:log1", "0:2:log3", "1:inf:lin3", "1:2:sqrt3", ",", ":", "1,,2", "1:2:log99999999"]
    ),
)


def sweeping_arguments(axis, spoilt):
    """Keyword arguments of `sweep`: those its question needs, two of them axes at most, and perhaps a `spoilt` one.

    With five axes a product has thousands of rows, which take minutes and show no more than a few do.
    """

    def of(what, protocol):
        names = [name for name in fields(protocol) if name != "drop_out_prob"]
        randomizer = st.sampled_from(["epsilon0", "noise_multiplier"] if what == "bracket" else ["epsilon0"])
        needed = {
            "rdp": ["order"],
            "rdp-bracket": ["order"],
            "published": ["bound", "delta"],
            "calibration": ["delta", "target_epsilon"],
        }
        names += needed.get(what, ["delta"])
        extra = st.lists(st.sampled_from(sweep_settings.NAMES), max_size=1)
        free = st.sampled_from([None, "num_rounds", "num_epochs", "check_in_prob", "nothing"])
        varied = st.lists(st.sampled_from(names), max_size=2, unique=True)
        common = {"what": st.just(what), "protocol": st.just(protocol), "bounds": st.just("fast")}
        if what == "calibration":
            common["free"] = free
        return st.tuples(randomizer, extra, varied).flatmap(
            lambda drawn: st.builds(
                dict.__or__,
                st.fixed_dictionaries(
                    common
                    | {
                        name: axis(name) if name in drawn[2] else value_of(name)
                        for name in dict.fromkeys([*names, drawn[0]])
                    }
                ),
                st.one_of(st.just({}), st.just({}), st.fixed_dictionaries(dict.fromkeys(drawn[1], spoilt))),
            )
        )

    def kinds(what):  # bounds were published for rounds
        return (cj.ShuffledCheckIn, cj.Shuffle) if what == "published" else protocols.PROTOCOLS

    return st.sampled_from(tuple(results.KINDS)).flatmap(
        lambda what: st.sampled_from(kinds(what)).flatmap(lambda protocol: of(what, protocol))
    )


@case(
    CASES,
    sweeping_arguments(axis_of, not_an_axis),
    st.sampled_from(["memory", ".csv", ".parquet"]),
    covers=(cj.sweep, cj.Sweep, cj.sweep_to_file, cj.finished_rows),
    few=5,
    many=250,
)
def sweeping(values, where):
    if where == "memory":
        table = call(cj.sweep, **values)
    else:
        with tempfile.TemporaryDirectory() as folder:
            written = call(cj.sweep_to_file, Path(folder) / f"table{where}", **values)
            table = call(cj.finished_rows, written.path)
        assert written.rows == len(table)
        assert written.failed == np.count_nonzero(table["error"].astype(str) != "")
    kind = results.KINDS[values["what"]]
    for name in kind.numbers:
        if not table.failed.all():
            assert not np.isnan(table[name][~table.failed].astype(np.float64)).any()
    if "lower" in table.columns and not table.failed.all():
        good = ~table.failed
        assert (table["lower"][good] <= table[kind.numbers[kind.numbers.index("lower") - 1]][good]).all()


# Arguments of the published bounds, each a number or an array of some.
def published_argument(name: str) -> st.SearchStrategy:
    one = {
        "num_clients": whole(1e12),
        "num_messages": whole(1e12),
        "num_slots": whole(1e12),
        "num_rounds": whole(1e9),
        "units": whole(1e12),
        "rate": spread(1e-9, 1.0),
        "check_in_prob": spread(1e-9, 1.0),
        "spread": spread(1e-3, 0.999),
        "epsilon0": st.one_of(spread(1e-6, 50.0), st.just(0.0)),
        "epsilon": spread(1e-6, 690.0),
        "delta0": st.one_of(spread(1e-30, 0.1), st.just(0.0)),
        "norm": spread(1e-6, 1e3),
    }.get(name, spread(1e-30, 0.5))
    if name == "orders":
        return st.lists(st.integers(2, 64), min_size=1, max_size=4)
    if name in ("bound", "pure"):
        return st.lists(spread(1e-9, 50.0), min_size=2, max_size=2).map(
            lambda values: PublishedBound(value=np.array(values), label="a", source="b", quantity="c")
        )
    if name == "one":
        return st.just(lambda delta: published.fixed_window(100, 1.0, delta))
    return st.one_of(one, one, st.lists(one, min_size=2, max_size=2))


def public(module) -> dict[str, object]:
    """The public functions and classes of a module."""
    names = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name: value for name, value in names.items() if callable(value) and not inspect.ismodule(value)}


# Records are made by the rest; theorem_1 and its like, which sum over many counts, take longer.
_RECORDS = (PublishedBound, published.Corollary33)
PUBLISHED = [function for function in public(published).values() if function not in _RECORDS]


@case(
    CASES,
    st.sampled_from(PUBLISHED).flatmap(
        lambda function: st.tuples(
            st.just(function),
            arguments(
                [], 1, **{name: published_argument(name) for name in inspect.signature(function).parameters}
            ),
        )
    ),
    covers=(*PUBLISHED, *_RECORDS),
    few=20,
    many=3_000,
)
def evaluating_published_bounds(drawn):
    function, values = drawn
    found = call(function, **values)
    bounds = vars(found).values() if isinstance(found, published.Corollary33) else [found]
    for bound in bounds:
        value = bound.value if isinstance(bound, PublishedBound) else bound
        assert not np.isnan(np.asarray(value, dtype=np.float64)).any()


@case(
    CASES,
    arguments(
        [],
        0,
        num_clients=whole(1e6),
        rate=spread(1e-4, 1.0),
        epsilon0=spread(1e-3, 20.0),
        orders=published_argument("orders"),
    ),
    covers=(published.theorem_1, published.theorem_3_sharper),
    few=1,
    many=100,
)
def published_directions(values):
    below = [published.theorem_3(**values), published.theorem_3_sharper(**values)]
    above = [published.theorem_1(**values), published.theorem_2_repaired(**values)]
    protocol = cj.ShuffledCheckIn(num_clients=values["num_clients"], check_in_prob=values["rate"])
    ours = cj.rdp(protocol, cj.PureLDP(epsilon0=values["epsilon0"]), values["orders"])
    for lower in below:
        assert lower.direction == "lower"
        assert all(
            (lower.value <= upper * (1.0 + ROUNDING)).all() for upper in [ours, *(b.value for b in above)]
        )


@case(
    CASES,
    arguments(
        [],
        0,
        available=st.lists(whole(1e12), min_size=1, max_size=5),
        coin=spread(1e-12, 1.0),
        drop_out_prob=PROPER["drop_out_prob"],
        num_colluding=PROPER["num_colluding"],
        min_reports=PROPER["min_reports"],
        cycles=whole(1e5),
        smallest=spread(1e-12, 1.0),
        num_clients=PROPER["num_clients"],
        rates=st.lists(spread(1e-12, 1.0), min_size=1, max_size=5),
        largest=spread(1e-12, 1.0),
        expected_check_ins=PROPER["expected_check_ins"],
    ),
    covers=(
        cj.from_availability,
        type(cj.from_availability([9], 0.5)),
        cj.Rates,
        cj.RateLimits,
    ),
    few=30,
    many=3_000,
)
def describing_fleets(values):
    of_log = ("available", "coin", "drop_out_prob", "num_colluding", "min_reports", "cycles")
    log = call(cj.from_availability, **{name: values[name] for name in of_log})
    assert log.num_rounds == values["cycles"] * len(values["available"])
    rates = call(cj.Rates, values=values["rates"])
    assert rates.num_clients == len(values["rates"])
    call(cj.RateLimits, **{name: values[name] for name in ("largest", "expected_check_ins")})
    ends = call(
        cj.RateLimits.between, **{name: values[name] for name in ("smallest", "largest", "num_clients")}
    )
    ends.check_clients(values["num_clients"])


training_fields = {
    "protocol": any_protocol,
    "randomizer": any_randomizer,
    "clip_norm": spread(1e-6, 1e6),
    "learning_rate": spread(1e-9, 1e9),
    "decay": st.sampled_from(["linear", "constant"]),
    "momentum": st.floats(0.0, 0.99),
    "averaging": st.floats(0.0, 0.99),
    "simulate": st.sampled_from(["aggregate", "messages"]),
    "delta": spread(1e-300, 0.99),
    "target_epsilon": st.one_of(st.none(), spread(1e-9, 1e9)),
    "target_view": st.sampled_from(["local", "messages", "aggregate"]),
    "before": st.lists(st.tuples(any_protocol, any_randomizer), max_size=2).map(tuple),
    "eval_every": whole(1e9),
    "target_accuracy": st.one_of(st.none(), spread(1e-3, 1.0)),
    "seed": st.one_of(st.none(), st.integers(0, 2**128)),
    "microbatch": st.one_of(st.none(), st.just(40), whole(1e6)),
    "records_per_client": whole(1e6),
    "local_steps": st.sampled_from([1, 5]),
    "local_learning_rate": st.one_of(st.none(), spread(1e-9, 1e9)),
    "tuning": st.sampled_from([None, "on public data"]),
}
of_the_run = set(fields(PrivateRun))
assert set(training_fields) == of_the_run | {*fields(ImageTraining)} - {"run"}


@case(
    CASES,
    st.lists(st.sampled_from([name for name in training_fields if name not in ("protocol", "randomizer")]))
    .map(lambda names: {name: training_fields[name] for name in ("protocol", "randomizer", *names)})
    .flatmap(lambda own: arguments([], 2, **own)),
    covers=(ImageTraining, PrivateRun),
    few=150,
    many=8_000,
)
def configuring(values):
    run = call(PrivateRun, **{name: value for name, value in values.items() if name in of_the_run})
    others = {name: value for name, value in values.items() if name not in of_the_run}
    config = call(ImageTraining, run=run, **others)
    json.dumps(run.as_dict(), allow_nan=False)
    assert dataclasses.replace(config) == config
    assert small(run).protocol.num_clients <= max(run.protocol.num_clients, 3)


counts = arguments(
    [],
    1,
    canaries=whole(1e4),
    guesses=whole(1e3),
    correct=whole(1e3),
    epsilon=spread(1e-6, 1e3),
    delta=spread(1e-300, 1.0),
    error=spread(1e-12, 0.999),
)


@case(CASES, counts, covers=(scores.one_run_p_value, scores.one_run_lower), few=80, many=4_000)
def guessing(values):
    epsilon, error = values.pop("epsilon"), values.pop("error")
    chance = call(scores.one_run_p_value, **values, epsilon=epsilon)
    assert 0.0 <= chance <= 1.0
    lower = call(scores.one_run_lower, **values, error=error)
    # What is refuted is not above what the chance at epsilon says.
    assert lower <= epsilon if chance >= error else lower >= 0.0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.turns(2)
def test_a_result_or_a_refusal(name, record_property):
    try_few(CASES[name], record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_result_or_a_refusal_many_times(name, record_property):
    try_many(CASES[name], record_property)


AUDITED = PrivateRun(protocol=cj.Shuffle(num_clients=9), randomizer=cj.PureLDP(epsilon0=1.0))
HUGE = 10**5000  # of more digits than Python writes down


@pytest.mark.parametrize(
    ("function", "values", "match"),
    [
        (cj.Shuffle, {"num_clients": HUGE}, "num_clients=int of thousands of digits: expected"),
        (cj.PureLDP, {"epsilon0": "x" * 5000}, r"epsilon0='x{199}\.\.\.: expected"),
        (
            cj.FixedWindow,
            {"num_clients": 9, "num_slots": 3, "empty_slots": np.array([1, 2])},
            "empty_slots=array",
        ),
        (
            cj.Gaussian.from_local,
            {"epsilon0": 1e-8, "delta0": 1e-300},
            "epsilon0=1e-08, delta0=1e-300: expected",
        ),
        (published.fixed_window, {"num_slots": [[1], [2, 3]], "epsilon0": 1, "delta": 0.1}, "num_slots="),
        (published.pure_rdp, {"epsilon": 1.0, "orders": 2.0}, "orders=2.0"),
        (
            cj.rdp,
            {"protocol": cj.Shuffle(num_clients=9), "randomizer": cj.PureLDP(epsilon0=1), "orders": 2},
            "orders=2",
        ),
        (
            cj.rdp,
            {"protocol": cj.Shuffle(num_clients=9), "randomizer": cj.PureLDP(epsilon0=1), "orders": ["a"]},
            "orders='a'",
        ),
        (
            cj.sweep,
            {
                **{"what": "calibration", "protocol": cj.Shuffle, "num_clients": 9, "epsilon0": 1},
                **{"delta": 0.1, "target_epsilon": 1, "free": "window"},
            },
            "free='window': expected one of num_clients, num_rounds, epsilon0, noise_multiplier",
        ),
        (
            cj.sweep,
            {"protocol": cj.Shuffle, "num_clients": 9, "epsilon0": 1, "delta": 0.1, "order": 2},
            "order: no argument of what='bracket' with protocol Shuffle; expected one of num_clients",
        ),
        (
            cj.sweep,
            {"protocol": cj.Shuffle, "num_clients": 9, "epsilon0": 1, "delta": "-1:1:log3"},
            "delta='-1:1:log3': expected both ends",
        ),
        (
            audit,
            {"run": AUDITED, "delta": 0.1, "views": 1.5},
            "views=1.5: expected at least one of 'local'",
        ),
        (published.repeated, {"one": 1, "num_rounds": 2, "delta": 0.1}, "one=1: expected a function"),
    ],
)
def test_what_was_once_refused_without_a_name(function, values, match):
    with pytest.raises((ValueError, TypeError), match=match):
        function(**values)


def test_logarithmic_ranges_of_numbers_whose_product_is_no_number():
    assert sweep_settings.axis("delta", "1e-300:1e-100:log3").tolist() == pytest.approx(
        [1e-300, 1e-200, 1e-100]
    )


def test_whole_numbers_beyond_floats_are_whole():
    protocol = cj.ShuffledCheckIn(num_clients=10, check_in_prob=0.5)
    run = PrivateRun(protocol=protocol, randomizer=cj.Gaussian(noise_multiplier=1.0))
    config = ImageTraining(run=run, eval_every=10**400)
    assert config.eval_every == 10**400


@pytest.mark.parametrize("noise", [np.array([1, 2]), np.array([]), 0])
def test_events_of_anything_are_supported_or_not(noise):
    event = cj.CheckInDpEvent(cj.Shuffle(num_clients=10), noise)
    assert not cj.CheckInAccountant(bounds="fast").supports(event)


def test_chances_at_an_epsilon_of_any_size():
    assert scores.one_run_p_value(5, 5, 3, 1e300, 0.0) == 1.0
