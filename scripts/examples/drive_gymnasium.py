"""Drive a Gymnasium environment with an exported policy: needs gymnasium, jax, flatbuffers, not jaxrl_hpc.

jaxrl-hpc export runs/cartpole_dqn --out my_policy && python scripts/examples/drive_gymnasium.py my_policy
"""

import sys

import gymnasium

sys.path.insert(0, sys.argv[1])
from policy import load  # the loader that lies beside the weights

policy = load(sys.argv[1])
env = gymnasium.make(policy.env)
obs, carry, total, done = env.reset(seed=0)[0], None, 0.0, False
while not done:
    action, carry = policy.act(obs, carry)
    obs, reward, terminated, truncated, _ = env.step(action)
    total, done = total + float(reward), terminated or truncated
print(f"{policy.env}: return {total:.0f}")
