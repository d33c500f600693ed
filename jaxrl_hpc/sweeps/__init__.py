"""Sweeps: many trials of one base config, packed into tasks that run here, under Slurm or under PBS.

spec.py       a sweep file, validated
axes.py       the values that its axes take
plan.py       trials with stable ids, packed into tasks by the compiled program that they share
directory.py  files of a sweep: frozen plans, results of trials, work of tasks
run.py        one task: train its lanes, write a result per trial
halving.py    successive halving: which trials continue after a rung
local.py      all tasks on this machine
slurm.py      job arrays
status.py     progress of all tasks
collect.py    one table with a row per trial
report.py     one page
"""
