"""Alerts: the figures of a store, conditions on them, and who is notified."""

from tenuto.capabilities.alerts.alerts import Alert, Alerts
from tenuto.capabilities.alerts.conditions import Condition, condition_of
from tenuto.capabilities.alerts.figures import FIGURES, Figures
from tenuto.capabilities.alerts.growth import Growth, Sample

__all__ = ["FIGURES", "Alert", "Alerts", "Condition", "Figures", "Growth", "Sample", "condition_of"]
