"""Full references of the sources cited on a page; the entries of docs/references.md."""

from __future__ import annotations

import re
from collections.abc import Iterable

REFERENCES: dict[str, str] = {
    "BBG18": "Balle, B., Barthe, G., Gaboardi, M. (2018). Privacy amplification by subsampling: tight analyses via "
    "couplings and divergences. NeurIPS 2018. arXiv 1807.01647.",
    "BBGN19": "Balle, B., Bell, J., Gascon, A., Nissim, K. (2019). The privacy blanket of the shuffle model. CRYPTO "
    "2019. arXiv 1903.02837.",
    "FMT23": "Feldman, V., McMillan, A., Talwar, K. (2023). Stronger privacy amplification by shuffling for Renyi and "
    "approximate differential privacy. SODA 2023. arXiv 2208.04591.",
    "FS25": "Feldman, V., Shenfeld, M. (2025). Privacy amplification by random allocation. arXiv 2502.08202.",
    "Hoe56": "Hoeffding, W. (1956). On the distribution of the number of successes in independent trials. Annals of "
    "Mathematical Statistics 27(3), 713-721.",
    "Mir12": "Mironov, I. (2012). On significance of the least significant bits for differential privacy. CCS 2012.",
    "NDL25": "Near, J. P., Darais, D., Lefkovitz, N., Howarth, G. S. (2025). Guidelines for evaluating differential "
    "privacy guarantees. NIST SP 800-226. doi 10.6028/NIST.SP.800-226.",
    "PHK23": "Ponomareva, N., Hazimeh, H., Kurakin, A., Xu, Z., Denison, C., McMahan, H. B., Vassilvitskii, S., Chien, "
    "S., Thakurta, A. (2023). How to DP-fy ML: a practical guide to machine learning with differential privacy. "
    "Journal of Artificial Intelligence Research 77, 1113-1201. arXiv 2303.00654.",
    "RCI": "Balle, B., Kairouz, P., McMahan, H. B., Thakkar, O., Thakurta, A. (2020). Privacy amplification via random "
    "check-ins. NeurIPS 2020. arXiv 2007.06605.",
}
_KEY = re.compile(r"\[(\w+)\]")


def cited(texts: Iterable[str]) -> dict[str, str]:
    """Entries of all keys in square brackets in the texts, in order of keys."""
    keys = {key for text in texts for key in _KEY.findall(text)}
    return {key: entry for key, entry in REFERENCES.items() if key in keys}
