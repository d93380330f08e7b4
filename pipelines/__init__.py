"""Flows, schedules and the command line: the only place that knows Prefect."""
