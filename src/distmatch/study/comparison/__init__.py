"""Comparing runs that differ in one thing: plan, cells, one evaluation for all, statistics, report."""
