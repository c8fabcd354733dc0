"""What is wrong with a run: a watch on any loop, its findings, and digests to compare."""

from mplab.common.installation import require_packages as _require_packages

_require_packages("mplab.health", "torch")

from mplab.health.comparison import Comparison as Comparison, compare as compare
from mplab.health.digest import Digest as Digest
from mplab.health.findings import Finding as Finding
from mplab.health.reports import Report as Report
from mplab.health.watch import Health as Health
