"""Calls inside a compiled program that never return end the job with a sentence; all others do nothing."""

import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxrl_hpc.envs.external.pulse import BEGUN, ENDED, STEP, Pulse, available

pytestmark = pytest.mark.skipif(not available(), reason="the library was not compiled")
HANDLE = np.arange(8, dtype=np.uint8)
STEPS = 20


class Heard:
    """What a pulse says."""

    def __init__(self, seconds):
        self.words, self.there = [], threading.Event()
        self.pulse = Pulse(seconds, self.hung)

    def hung(self, call, step):
        self.words.append((call, step))
        self.there.set()


def run(pulse, call):
    """STEPS calls in one program, each between its marks -> the handle that went through all."""

    def host(handle, number):
        call(int(number))
        return handle

    def body(handle, number):
        begun, like = pulse.begin(handle, number), jax.ShapeDtypeStruct(HANDLE.shape, HANDLE.dtype)
        return pulse.end(io_callback(host, like, begun, number, ordered=True), number), None

    return jax.jit(lambda h: jax.lax.scan(body, h, jnp.arange(STEPS, dtype=jnp.int32))[0])(HANDLE)


def test_marks_count_calls_and_leave_the_handle_alone():
    heard = Heard(60.0)
    during = []

    def call(number):
        during.append(tuple(int(heard.pulse._memory[i]) for i in (BEGUN, ENDED, STEP)))

    np.testing.assert_array_equal(run(heard.pulse, call), HANDLE)
    assert during == [(i + 1, i, i) for i in range(STEPS)]
    assert heard.pulse._memory[BEGUN] == heard.pulse._memory[ENDED] == STEPS


def test_a_call_that_does_not_return_is_told_with_its_step():
    heard, free = Heard(3.0), threading.Event()
    heard.pulse.start()

    def call(number):
        if number == 7:
            assert heard.there.wait(600)  # as long as nobody has noticed
            free.set()

    jax.block_until_ready(run(heard.pulse, call))
    assert free.is_set()
    ((call, step),) = heard.words
    assert (call.number, call.doing, call.seconds, step) == (8, "", 3.0, 7)
    heard.pulse.close()


@pytest.mark.full
def test_many_calls_and_long_pauses_between_them_are_well():
    heard = Heard(4.0)  # a call of a busy machine takes less
    heard.pulse.start()
    for pause in (5.0, 0.0):
        jax.block_until_ready(run(heard.pulse, lambda number: time.sleep(0.02)))
        time.sleep(pause)  # the host or the learner is busy: no call is under way
    heard.pulse.close()
    assert heard.words == []


def test_what_the_host_does_has_a_limit_too():
    heard = Heard(60.0)
    heard.pulse.seconds = 0.2
    heard.pulse.start()
    with heard.pulse.busy("resetting it", 0.3):
        assert heard.there.wait(600)
    ((call, _),) = heard.words
    assert (call.doing, call.seconds) == ("resetting it", 0.3)
    heard.pulse.close()


PROGRAM = """
import jax, numpy as np, threading
from jax.experimental import io_callback
from jaxrl_hpc.envs.external import envpool_env

env = envpool_env.make_lander(envpool_env.LanderConfig(deadline_seconds=5.0))
keys = jax.random.split(jax.random.key(0), 2)
plain, steps = env.host.simulators.pool(2), []

def stops(handle, action):
    def wait(handle):
        steps.append(0)
        if len(steps) == 5:
            threading.Event().wait()
        return handle
    like = jax.ShapeDtypeStruct((8,), np.uint8)
    return plain.step(io_callback(wait, like, handle, ordered=True), action)

env.host.simulators.pools[2] = plain._replace(step=stops)
state, _ = jax.jit(env.reset)(keys)
play = jax.jit(lambda s: jax.lax.scan(lambda s, a: env.step(keys, s, a), s, np.zeros((50, 2), np.int32))[0])
jax.block_until_ready(play(state))
print("the end")
"""


def test_a_pool_that_hangs_ends_the_job_with_one_sentence():
    pytest.importorskip("envpool")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr == (
        "error: env 'LunarLander-v3': its copies did not return within env.deadline_seconds = 5 (step 5, "
        "rank 0); env.interface=callback with env.on_error=reset drops such episodes and continues\n"
    )
