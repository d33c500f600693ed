"""Masks of actions: in values, in exploration, in distributions of one choice and of several."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_hpc.ops import distributions, masks
from jaxrl_hpc.ops.exploration import epsilon_greedy
from jaxrl_hpc.types import EnvSpec

ONE = EnvSpec("made up", (5,), np.dtype(np.float32), 3, (), None, None, 10, action_mask=True)
SEVERAL = ONE._replace(num_actions=None, action_shape=(2,), action_sizes=(3, 2), obs_shape=(7,))
DRAWS = 4000


def test_masks_are_the_end_of_observations():
    assert masks.allowed(ONE._replace(action_mask=False), jnp.zeros((2, 5))) is None
    obs = jnp.array([[9.0, 9, 1, 0, 1], [9, 9, 0, 0, 0]])
    found = masks.allowed(ONE, obs)
    np.testing.assert_array_equal(found, [[True, False, True], [True] * 3])  # nothing allowed: everything
    several = masks.allowed(SEVERAL, jnp.array([9.0, 9, 0, 0, 1, 0, 0]))
    np.testing.assert_array_equal(several, [False, False, True, True, True])  # each choice has its own mask
    np.testing.assert_array_equal(masks.forbid(jnp.ones(3), found[0]), [1, masks.FORBIDDEN, 1])


def test_exploration_is_uniform_over_what_is_allowed():
    mask = jnp.tile(jnp.array([False, True, False, True, True]), (DRAWS, 1))
    values = jnp.tile(jnp.array([9.0, 1, 8, 2, 3]), (DRAWS, 1))
    keys = jax.random.split(jax.random.key(0), DRAWS)
    random = np.bincount(epsilon_greedy(keys, values, jnp.float32(1), mask), minlength=5) / DRAWS
    assert random[0] == random[2] == 0
    assert (np.abs(random[[1, 3, 4]] - 1 / 3) < 4 * np.sqrt(0.25 / DRAWS)).all()
    assert (epsilon_greedy(keys, values, jnp.float32(0), mask) == 4).all()


def test_what_is_forbidden_has_no_probability_and_no_entropy():
    one = distributions.categorical(4)
    logits = jnp.array([[0.3, 0.1, -0.2, 0.7]])
    mask = jnp.array([[False, True, True, False]])
    masked, two = masks.forbid(logits, mask), distributions.categorical(2)
    key = jax.random.key(0)
    np.testing.assert_allclose(one.entropy(masked, key), two.entropy(logits[:, 1:3], key), rtol=1e-5)
    np.testing.assert_allclose(
        one.log_prob(masked, jnp.array([1])), two.log_prob(logits[:, 1:3], jnp.array([0])), rtol=1e-5
    )
    drawn = one.sample(jnp.tile(masked, (DRAWS, 1)), jax.random.split(key, DRAWS))
    assert set(np.unique(drawn)) == {1, 2}
    grads = jax.grad(lambda x: one.entropy(masks.forbid(x, mask), key).sum())(logits)
    assert np.isfinite(grads).all() and (np.asarray(grads)[0, [0, 3]] == 0).all()


def test_several_choices_are_independent_ones():
    several, parts = distributions.multi_categorical((3, 2)), [distributions.categorical(n) for n in (3, 2)]
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 5)), jnp.float32)
    own, key = (logits[:, :3], logits[:, 3:]), jax.random.key(0)
    raw = jnp.array([[0, 1], [2, 0], [1, 1], [0, 0]])
    expected = sum(part.log_prob(x, raw[:, i]) for i, (part, x) in enumerate(zip(parts, own, strict=True)))
    np.testing.assert_allclose(several.log_prob(logits, raw), expected, rtol=1e-6)
    entropies = sum(part.entropy(x, key) for part, x in zip(parts, own, strict=True))
    np.testing.assert_allclose(several.entropy(logits, key), entropies, rtol=1e-6)
    np.testing.assert_array_equal(several.mode(logits), np.stack([x.argmax(axis=1) for x in own], axis=1))
    every = [(i, j) for i in range(3) for j in range(2)]
    total = np.exp([several.log_prob(logits[:1], jnp.array([pair]))[0] for pair in every]).sum()
    np.testing.assert_allclose(total, 1.0, rtol=1e-5)
    drawn = np.asarray(several.sample(jnp.tile(logits[:1], (DRAWS, 1)), jax.random.split(key, DRAWS)))
    assert drawn.shape == (DRAWS, 2) and drawn.dtype == np.int32
    for pair in every:
        probability = float(jnp.exp(several.log_prob(logits[:1], jnp.array([pair]))[0]))
        share = (drawn == pair).all(axis=1).mean()
        assert abs(share - probability) < 4 * np.sqrt(probability / DRAWS)


def test_the_family_suits_the_spec():
    assert distributions.for_spec(SEVERAL, False).num_outputs == SEVERAL.choices == 5
    assert SEVERAL.discrete and SEVERAL.action_dtype == np.int32 and ONE.choices == 3
