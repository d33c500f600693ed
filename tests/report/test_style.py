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
    assert len(FAMILIES) == len(PALETTE) == len(DARK_PALETTE)
    assert color_index(["ppo", "dqn"]) == [1, 0]
    assert (
        colors_of(["a2c_vtrace", "a2c"])[0] == PALETTE[2] and len(set(colors_of(["a2c", "a2c_vtrace"]))) == 2
    )
    assert color_index(["recurrent_dqn"]) == [6]
    entries = [f"entry {i}" for i in range(8)]
    assert sorted(color_index(entries)) == list(range(8))
