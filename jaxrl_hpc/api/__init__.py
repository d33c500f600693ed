"""The public API, `import jaxrl_hpc as rl`: runs, sweeps, and parts with plain arguments.

training.py   rl.train
run.py        rl.Run, rl.load, rl.compare
sweep.py      rl.sweep
policy.py     observations -> actions
agents.py, envs.py, replay.py, workflows.py    rl.agents.dqn(…) and so on
parts.py      settings as keyword arguments
notebook.py   how runs, sweeps and progress look in a notebook
"""
