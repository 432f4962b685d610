"""Sweeps: rows against `account` and the oracles, error rows, and rows that do not depend on their company."""

import numpy as np
import pytest

import checkin_jax as cj
from checkin_jax.accounting import published
from checkin_jax.sweeps import settings

RESULTS = ("epsilon", "lower")


def same_rows(one, other, index=slice(None)):
    """Bit for bit, seconds aside; `index` picks the rows of `one`."""
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        if name != "seconds":
            a, b = one[name][index], other[name]
            assert a.dtype.kind == b.dtype.kind
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name


@pytest.fixture(scope="module")
def singles():
    return cj.sweep(
        protocol=cj.Shuffle,
        num_clients=[10**6, 3 * 10**6, 10**7],
        epsilon0=[1.0, 2.0],
        delta=1e-6,
        bounds="fast",
    )


@pytest.fixture(scope="module")
def composed():
    """Some rounds; one broken row."""
    return cj.sweep(
        table={
            "num_clients": [10**6, 2 * 10**6, 10**6, 10**6],
            "check_in_prob": [0.5, 0.5, 1.5, 0.6],
            "num_rounds": [100, 100, 10, 90],
            "epsilon0": [1.0, 1.0, 1.0, 1.1],
            "delta": 1e-6,
        },
        bounds="fast",
    )


def accounted(table, protocol, i):
    fields = {name: table[name][i].item() for name in table.columns if name in protocol.__annotations__}
    randomizer = cj.PureLDP(epsilon0=float(table["epsilon0"][i]))
    return cj.account(protocol(**fields), randomizer, delta=float(table["delta"][i]), bounds="fast")


def test_rows_are_those_of_account(singles, composed):
    for table, protocol in ((singles, cj.Shuffle), (composed, cj.ShuffledCheckIn)):
        for i in np.flatnonzero(~table.failed):
            g = accounted(table, protocol, i)
            for name in ("epsilon", "lower", "method", "lower_method", "validity"):
                assert table[name][i] == getattr(g, name)


def test_a_broken_setting_is_a_row_with_its_error_and_no_numbers(composed):
    assert composed.failed.tolist() == [False, False, True, False]
    assert composed["error"][2] == "check_in_prob=1.5: expected a number in (0, 1]"
    for name in RESULTS:
        assert np.array_equal(np.isnan(composed[name]), composed.failed)
    assert composed["method"][2] == composed["validity"][2] == ""
    assert set(composed["version"]) == {cj.__version__}


def test_a_file_says_what_was_left_out(composed):
    """Whoever finds the file finds adversary, adjacency, protocol and choice of theorems in it."""
    said = {
        "view": "messages",
        "neighboring_relation": "replace-one",
        "protocol": "ShuffledCheckIn",
        "bounds": "fast",
    }
    assert {name: set(composed[name]) for name in said} == {name: {value} for name, value in said.items()}
    assert not {"view", "protocol", "bounds"} & set(str(composed).partition(";")[0].split())
    again = cj.sweep(table=cj.Sweep({n: c[:1] for n, c in composed.columns.items()}), bounds="fast")
    assert list(again.columns) == list(composed.columns), "a file is a table of settings, too"


def test_rows_do_not_depend_on_order_blocks_or_company(singles, composed):
    arguments = {name: singles[name] for name in ("num_clients", "epsilon0", "delta")}
    shuffled = np.array([4, 2, 0, 5, 1, 3])
    order = {name: column[shuffled] for name, column in arguments.items()}
    same_rows(singles, cj.sweep(protocol=cj.Shuffle, table=order, block_rows=4, bounds="fast"), shuffled)
    alone = {name: column[2:3] for name, column in arguments.items()}
    same_rows(singles, cj.sweep(protocol=cj.Shuffle, table=alone, bounds="fast"), [2])
    names = ("num_clients", "check_in_prob", "num_rounds", "epsilon0", "delta")
    backwards = {name: composed[name][::-1] for name in names}
    same_rows(composed, cj.sweep(table=backwards, block_rows=2, bounds="fast"), slice(None, None, -1))


def test_a_view_is_as_in_account():
    found = cj.sweep(
        num_clients=60_000, check_in_prob=[0.1, 0.2], epsilon0=[1.0], view="local", delta=1e-6, bounds="fast"
    )
    run = cj.ShuffledCheckIn(num_clients=60_000, check_in_prob=0.2)
    g = cj.account(run, cj.PureLDP(epsilon0=1.0), delta=1e-6, view="local", bounds="fast")
    assert (found["epsilon"][1], found["lower"][1]) == (g.epsilon, g.lower)


def test_sums_of_slots_are_an_axis():
    randomizer, fields = cj.Gaussian(noise_multiplier=2.0), {"num_clients": 90, "num_slots": 40}
    rows = cj.sweep(
        protocol=cj.FixedWindow,
        **fields,
        minibatch="1,20,41",
        noise_multiplier=2.0,
        delta=1e-6,
        view="aggregate",
        bounds="fast",
    )
    for row, size in enumerate((1, 20)):
        g = cj.account(
            cj.FixedWindow(**fields, minibatch=size), randomizer, delta=1e-6, view="aggregate", bounds="fast"
        )
        assert (rows["epsilon"][row], rows["lower"][row]) == (g.epsilon, g.lower)
    assert "minibatch=41" in rows["error"][2]


def test_another_relation_is_asked_for_by_name_and_refused_by_row():
    words = {"neighboring_relation": ["replace-one", "add-or-remove-one"]}
    found = cj.sweep(protocol=cj.Shuffle, num_clients=10**6, epsilon0=1.0, delta=1e-6, **words)
    assert found.failed.tolist() == [False, True]
    assert "neighboring_relation='add-or-remove-one'" in found["error"][1]


GRID = {
    "num_clients": "1e2:1e9:log5",
    "check_in_prob": [0.001, 0.3],
    "num_rounds": [1, 1000],
    "epsilon0": [0.1, 4.0],
}


@pytest.mark.parametrize("bound", ["theorem-2", "theorem-2-repaired"])
def test_published_bounds_are_those_of_their_functions(bound):
    orders = (2, 3, 8, 40)
    # The repair sums over the number of messages: few clients, one size of sum.
    grid = GRID if bound == "theorem-2" else {**GRID, "num_clients": [100, 300]}
    found = cj.sweep(what="published", bound=bound, orders=orders, delta=1e-6, **grid)
    theorem = {"theorem-2": published.theorem_2, "theorem-2-repaired": published.theorem_2_repaired}[bound]
    n, rate, epsilon0, rounds = (
        found[name].astype(float) for name in ("num_clients", "check_in_prob", "epsilon0", "num_rounds")
    )
    one = theorem(n, rate, epsilon0, orders)
    right = published.epsilon(one, orders, num_rounds=rounds, delta=1e-6).value
    assert np.allclose(found["epsilon"], right, rtol=1e-12, atol=0)
    assert set(found["validity"]) == {one.validity}


def test_lower_bounds_on_divergences_are_no_bounds_once_converted():
    orders = np.array([2.0, 3.0, 5.0, 9.0, 17.0, 40.0, 100.0, 256.0])
    bounds = ["theorem-3", "theorem-3-sharper"]
    found = cj.sweep(what="published", bound=bounds, orders=orders, delta=1e-6, **GRID)
    assert set(found["validity"]) == {"estimate"}
    for bound, theorem in (
        ("theorem-3", published.theorem_3),
        ("theorem-3-sharper", published.theorem_3_sharper),
    ):
        rows = found["bound"] == bound
        n, rate, epsilon0, rounds = (
            found[name][rows].astype(float)
            for name in ("num_clients", "check_in_prob", "epsilon0", "num_rounds")
        )
        t = orders - 1.0
        value = theorem(n, rate, epsilon0, orders).value * rounds[:, None]
        # The conversion is rounded up by some 1e-12.
        by_order = value + (-np.log(1e-6) + t * np.log1p(-1.0 / orders) - np.log(orders)) / t
        assert np.allclose(found["epsilon"][rows], np.maximum(by_order.min(axis=1), 0.0), rtol=1e-11, atol=0)


def test_curves_and_calibrations_are_those_of_their_functions():
    run, orders = cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=0.5, num_rounds=3), [2.0, 5.5, 6.0]
    found = cj.sweep(
        what="rdp", num_clients=10**6, check_in_prob=0.5, num_rounds=3, epsilon0=1.0, order=[*orders, 0.5]
    )
    # `rdp` cuts at its largest order, here at the next power of two: both are within 0.1% of the pair's own value.
    assert np.allclose(found["rdp"][:3], cj.rdp(run, cj.PureLDP(epsilon0=1.0), orders), rtol=1e-4, atol=0)
    alone = cj.sweep(what="rdp", num_clients=10**6, check_in_prob=0.5, num_rounds=3, epsilon0=1.0, order=5.5)
    assert alone["rdp"][0] == found["rdp"][1]
    assert found["error"][3] == "order=0.5: expected a number in (1, inf)"
    found = cj.sweep(
        what="calibration",
        free="epsilon0",
        num_clients=10**6,
        check_in_prob=0.5,
        target_epsilon=[0.01],
        delta=1e-6,
        bounds="fast",
    )
    right = cj.calibrate(
        cj.ShuffledCheckIn(num_clients=10**6, check_in_prob=0.5),
        cj.PureLDP,
        target_epsilon=0.01,
        delta=1e-6,
        bounds="fast",
    )
    assert (found["value"][0], found["epsilon"][0]) == (right.value, right.guarantee.epsilon)


@pytest.mark.parametrize(
    ("name", "given", "right"),
    [
        ("num_clients", "1e3:1e5:log3", [1000, 10_000, 100_000]),
        ("num_rounds", "1:3:log9", [1, 2, 3]),
        ("check_in_prob", "0:1:lin3,.2", [0.0, 0.5, 1.0, 0.2]),
        ("view", "local,messages", ["local", "messages"]),
        ("num_clients", 1e6, [10**6]),
    ],
)
def test_axes_as_text(name, given, right):
    about = {"num_clients": 100, "check_in_prob": 0.5, "epsilon0": 0.0, "order": 2.0}
    found = cj.sweep(what="rdp", **about | {name: given})[name]
    assert found.tolist() == right
    assert (
        found.dtype.kind == {"num_clients": "i", "num_rounds": "i", "check_in_prob": "f", "view": "O"}[name]
    )


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"num_clients": "1e3:1e5"}, ValueError, "num_clients='1e3:1e5': expected numbers, ranges"),
        ({"check_in_prob": "0:1:log5"}, ValueError, "logarithmic range"),
        ({"num_clients": [True]}, TypeError, "num_clients=.*expected numbers"),
        ({"num_clients": []}, ValueError, "at least one value"),
        ({"clients": 5}, ValueError, "clients=5: no argument of a sweep"),
        (
            {"what": "published", "bound": "clones-2021", "num_colluding": 5},
            ValueError,
            "num_colluding: no argument of what='published' with protocol ShuffledCheckIn",
        ),
        (
            {"num_slots": 5},
            ValueError,
            "num_slots: no argument of what='bracket' with protocol ShuffledCheckIn",
        ),
        ({"delta": None}, TypeError, "delta"),
        ({"what": "epsilon"}, ValueError, "what='epsilon'"),
        ({"noise_multiplier": 1.0}, ValueError, "exactly one of epsilon0 and noise_multiplier"),
        ({"free": "epsilon0"}, ValueError, "free='epsilon0'"),
        ({"what": "calibration", "free": ["epsilon0"]}, ValueError, "free=\\['epsilon0'\\]: expected a text"),
        ({"table": {"num_rounds": [1, 2], "minibatch": [1, 2, 3]}}, ValueError, "columns of one length"),
        ({"table": {"num_rounds": [1, 2], "minibatch": [1]}}, ValueError, "minibatch has 1"),
        (
            {"num_clients": "1:1e5:lin100000", "num_rounds": "1:1e5:lin100000"},
            ValueError,
            "at most 1,000,000,000",
        ),
        ({"num_clients": "1:2:lin999999999"}, ValueError, "2 to 10,000,000 values"),
        ({"what": "published", "bound": "theorem-9"}, ValueError, "bound='theorem-9'"),
        ({"view": "mesages"}, ValueError, "view='mesages': expected one of"),
        ({"view": "local,aggregat"}, ValueError, "view='aggregat': expected one of"),
        ({"neighboring_relation": "replace"}, ValueError, "neighboring_relation='replace': expected"),
        (
            {"protocol": cj.FixedWindow, "num_slots": 5, "empty_slots": "hidden"},
            ValueError,
            "empty_slots='hidden': expected one of",
        ),
        ({"orders": [2]}, ValueError, "orders: an argument of what='published' alone"),
        ({"block_rows": 0}, ValueError, "block_rows=0"),
    ],
)
def test_bad_arguments_get_one_clear_error(arguments, error, match):
    given = {"num_clients": 1000, "check_in_prob": 0.1, "epsilon0": 1.0, "delta": 1e-6, **arguments}
    with pytest.raises(error, match=match):
        cj.sweep(**given)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"check_in_prob=None: expected a value, which what='bra"):
        cj.sweep(num_clients=1000, epsilon0=1.0, delta=1e-6)


def test_the_product_runs_with_the_last_argument_fastest():
    found = cj.sweep(
        what="rdp", protocol=cj.Shuffle, epsilon0=0.0, num_clients=[5, 7], order=[2, 3, 4.0], block_rows=4
    )
    assert found["num_clients"].tolist() == [5, 5, 5, 7, 7, 7]
    assert found["order"].tolist() == [2, 3, 4, 2, 3, 4]


TABLES = [{"num_clients": [1, 2]}, cj.Sweep({"num_clients": np.array([1, 2])})]


@pytest.mark.parametrize("table", TABLES, ids=["mapping", "sweep"])
def test_no_argument_replaces_a_column(table):
    with pytest.raises(
        ValueError, match="num_clients=1000: expected no argument beside a column num_clients"
    ):
        cj.sweep(table=table, num_clients=1000, protocol=cj.Shuffle, epsilon0=1.0, delta=1e-6)


def test_long_columns_are_not_copied(tmp_path):
    """Ten million rows are a gigabyte: numbers and words of a table in memory stay where they are."""
    rows = 100_000
    words = np.resize(["theorem-2", "theorem-3"], rows)
    given = {"num_clients": np.arange(1, rows + 1), "epsilon0": np.linspace(0, 1, rows), "bound": words}
    made = settings.zipped({**given, "delta": 1e-6})
    for name, column in given.items():
        assert np.shares_memory(made.axes[name], column)
    assert made.axes["delta"].strides == (0,)
    assert made.digest() == settings.zipped({**given, "delta": np.full(rows, 1e-6)}).digest()
    assert settings.axis("num_clients", np.array([3.0, 4.0])).dtype == np.int64
    read = cj.Sweep({"bound": words.astype(object)}).save(tmp_path / "words.parquet")
    held = cj.finished_rows(read)["bound"]
    assert (held == words).all()
    assert len(set(map(id, held))) == 2


@pytest.mark.parametrize(
    "given", [np.array(["local,messages"]), np.array(["local", "messages"], dtype=object)]
)
def test_columns_of_words(given):
    found = cj.sweep(what="rdp", protocol=cj.Shuffle, num_clients=9, epsilon0=0.0, order=2.0, view=given)
    assert found["view"].tolist() == ["local", "messages"]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("delta", np.array([True])),
        ("view", np.array(["local", 1], dtype=object)),
        ("view", 3),
        ("view", [["local"]]),
        ("delta", np.full((2, 2), 0.1)),
        ("delta", [[0.1, 0.2], [0.3, 0.4]]),
        ("delta", [0.1, [0.2]]),
    ],
)
def test_columns_of_something_else_are_refused(name, given):
    about = {"num_clients": 9, "epsilon0": 1.0, "delta": 1e-6, "view": "local"}
    with pytest.raises(TypeError, match=f"^{name}=.*expected"):
        cj.sweep(protocol=cj.Shuffle, **about | {name: given})
