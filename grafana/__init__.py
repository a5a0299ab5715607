"""Dashboards for Grafana, alert rules for Prometheus, and what brings both up."""
