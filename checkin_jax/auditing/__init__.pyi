"""Names of the package, each imported on first use."""

from .auditor import Audit as Audit
from .auditor import Finding as Finding
from .auditor import audit as audit
from .one_run import TrainedRun as TrainedRun
from .placement import Placement as Placement
