"""The audit: will this state survive production? Each line of a checklist is tested, on a store or on any state manager."""

from tenuto.audit.checklist import audit_store, audit_target
from tenuto.audit.findings import Finding, Item, Report
from tenuto.audit.rules import RULES, Rule, rule

__all__ = ["RULES", "Finding", "Item", "Report", "Rule", "audit_store", "audit_target", "rule"]
