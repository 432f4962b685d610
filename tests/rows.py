"""Answers by some rows of the table of bounds: users name bounds by words, of which a row is one case."""

from unittest import mock

import checkin_jax as cj
from checkin_jax.accounting.bounds import table


def account(theorems, *run, **asked):
    """`cj.account` by the rows for these theorems alone: one label of the proofs, or several."""
    labels = (theorems,) if isinstance(theorems, str) else theorems
    found = tuple(each for each in table.BOUNDS if not set(each.labels).isdisjoint(labels))
    assert set(labels) <= {label for each in found for label in each.labels}
    with mock.patch.object(table, "BOUNDS", found):
        return cj.account(*run, bounds=tuple(each.word for each in found), **asked)
