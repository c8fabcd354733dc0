"""The health of a live training run, from hooks: what is observed, what it means, what to check."""

from mplab.health.findings import Finding
from mplab.health.reports import Report
from mplab.health.watch import Health

__all__ = ["Finding", "Health", "Report"]
