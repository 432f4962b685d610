"""Bounds of the shuffled check-in and random check-ins papers, and of one shuffle, as printed; each with its validity.

They serve reproduction and comparison. `account` uses none of them; `checkin_jax.accounting.compare` shows them for a
run.
"""

from checkin_jax.accounting.published.approximate import approach_1 as approach_1
from checkin_jax.accounting.published.approximate import approach_2 as approach_2
from checkin_jax.accounting.published.approximate import baseline as baseline
from checkin_jax.accounting.published.approximate import epsilon as epsilon
from checkin_jax.accounting.published.approximate import lemma_3 as lemma_3
from checkin_jax.accounting.published.approximate import pure_rdp as pure_rdp
from checkin_jax.accounting.published.approximate import repeated as repeated
from checkin_jax.accounting.published.approximate import shuffle_epsilon as shuffle_epsilon
from checkin_jax.accounting.published.approximate import strong as strong
from checkin_jax.accounting.published.approximate import strong_composition as strong_composition
from checkin_jax.accounting.published.formula import PublishedBound as PublishedBound
from checkin_jax.accounting.published.shuffled import lemma_4 as lemma_4
from checkin_jax.accounting.published.shuffled import subsampling_only as subsampling_only
from checkin_jax.accounting.published.shuffled import theorem_1 as theorem_1
from checkin_jax.accounting.published.shuffled import theorem_1_fixed_weight as theorem_1_fixed_weight
from checkin_jax.accounting.published.shuffled import theorem_1_smaller as theorem_1_smaller
from checkin_jax.accounting.published.shuffled import theorem_2 as theorem_2
from checkin_jax.accounting.published.shuffled import theorem_2_repaired as theorem_2_repaired
from checkin_jax.accounting.published.shuffled import theorem_3 as theorem_3
from checkin_jax.accounting.published.shuffled import theorem_3_sharper as theorem_3_sharper
from checkin_jax.accounting.published.slot_theorems import Corollary33 as Corollary33
from checkin_jax.accounting.published.slot_theorems import approximate_ldp as approximate_ldp
from checkin_jax.accounting.published.slot_theorems import averaged_updates as averaged_updates
from checkin_jax.accounting.published.slot_theorems import clones_2021 as clones_2021
from checkin_jax.accounting.published.slot_theorems import clones_2023 as clones_2023
from checkin_jax.accounting.published.slot_theorems import corollary_3_3 as corollary_3_3
from checkin_jax.accounting.published.slot_theorems import delta0_limit as delta0_limit
from checkin_jax.accounting.published.slot_theorems import fixed_window as fixed_window
from checkin_jax.accounting.published.slot_theorems import fixed_window_dummies as fixed_window_dummies
from checkin_jax.accounting.published.slot_theorems import fixed_window_unrelaxed as fixed_window_unrelaxed
from checkin_jax.accounting.published.slot_theorems import privacy_blanket as privacy_blanket
from checkin_jax.accounting.published.slot_theorems import shuffle as shuffle
from checkin_jax.accounting.published.slot_theorems import shuffle_2019 as shuffle_2019
from checkin_jax.accounting.published.slot_theorems import shuffle_unrelaxed as shuffle_unrelaxed
from checkin_jax.accounting.published.slot_theorems import sliding_window as sliding_window
from checkin_jax.accounting.published.slot_theorems import sliding_window_dummies as sliding_window_dummies
from checkin_jax.accounting.published.slot_theorems import variation_ratio as variation_ratio
from checkin_jax.accounting.published.slot_theorems import weighted_shuffle as weighted_shuffle
