"""Names that people read, and colours that keep their meaning."""

import pytest

from jaxrl_hpc.report.style import DARK_PALETTE, FAMILIES, PALETTE, color_index, colors_of, title, words


@pytest.mark.parametrize(
    ("identifier", "text"),
    [
        ("a2c_vtrace", "A2C + V-trace"),
        ("dqn", "DQN"),
        ("recurrent_dqn", "recurrent DQN"),
        ("dyna_q", "Dyna-Q"),
        ("parameter_server", "parameter server"),
        ("dqn_5_updates", "DQN 5 updates"),
        ("ppo_lstm", "PPO LSTM"),
        ("mbpo_td3", "MBPO TD3"),
        ("sac_20_updates", "SAC 20 updates"),
        ("CartPole-v1", "CartPole-v1"),
        ("my.module:Agent", "my.module:Agent"),
    ],
)
def test_identifiers_become_words(identifier: str, text: str) -> None:
    assert words(identifier) == text


def test_metrics_have_units_and_capitals() -> None:
    assert title("wall_seconds") == "Wall time (min)"
    assert title("eval_length") == "Evaluation length (steps)"
    assert title("policy_loss") == "Policy loss"
    assert title("compile_seconds") == "Compile (s)"


def test_agents_keep_their_colours_and_no_two_entries_share_one() -> None:
    assert len(FAMILIES) == len(set(PALETTE)) == len(set(DARK_PALETTE))
    assert color_index(["ppo", "dqn"]) == [1, 0] and color_index(["recurrent_dqn"]) == [6]
    assert sorted(color_index([f"entry {i}" for i in range(len(PALETTE))])) == list(range(len(PALETTE)))
    for agent, place in (("sac", 8), ("pqn", 9), ("mbpo", 10), ("iql", 11)):
        assert colors_of([agent]) == [PALETTE[place]]
    assert colors_of(["BeamRider, PPO", "Breakout, IMPALA"]) == [PALETTE[1], PALETTE[2]]


def test_entries_of_one_agent_are_shades_of_its_colour() -> None:
    warm, plain, other = colors_of(["td3_warm", "td3", "ddpg"])
    assert (plain, other) == (PALETTE[3], PALETTE[4]) and warm not in PALETTE
    several = colors_of(["dqn_5_updates", "dqn_1_update", "dqn", "dqn_uniform", "dyna_q"])
    assert several[2] == PALETTE[0] and several[4] == PALETTE[7] and len(set(several)) == 5


def test_entries_whose_names_tell_no_agent() -> None:
    assert colors_of(["before", "after"], ["ppo", "sac"]) == [PALETTE[1], PALETTE[8]]
    assert colors_of(["plain", "dueling"], ["dqn", "dqn"]) == [PALETTE[0], PALETTE[1]]
    assert colors_of(["some run"], ["mbpo"]) == [PALETTE[10]]
