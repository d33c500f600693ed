"""Where windows do not work: what is said, and what all ranks do instead. On ranks: tests/mpi."""

import pytest

from jaxrl_hpc.comm.rma import transport
from jaxrl_hpc.comm.rma.selftest import Verdict
from jaxrl_hpc.comm.rma.transport import RmaOptions, connect
from jaxrl_hpc.comm.rma.window import NoWindow
from jaxrl_hpc.comm.roles import Roles
from jaxrl_hpc.comm.transport import BufferSizes
from jaxrl_hpc.errors import UserError

SIZES = BufferSizes(message=16, params=24, in_flight=3)
BEGIN = "one-sided memory cannot be used here (no room); using two-sided messages instead"


@pytest.fixture(params=["trial", "window"])
def failing(request, monkeypatch):
    """Windows that fail in the self-test, or later, when the real one is made."""

    def make(*_):
        raise NoWindow("no room")

    works = request.param == "window"
    monkeypatch.setattr(
        transport, "examine", lambda _: Verdict(works, False, "all right" if works else "no room")
    )
    monkeypatch.setattr(transport, "Window", make)


@pytest.mark.parametrize(
    ("options", "learners", "rest"),
    [
        (RmaOptions("actor"), 2, ""),
        (RmaOptions("learner", help=True), 1, ""),
        (RmaOptions("learner", help=True), 2, ", for which workflow.help=true has no effect"),
        (
            RmaOptions("actor", rule="drop_oldest", selection="random"),
            2,
            ", for which workflow.when_full=drop_oldest and workflow.selection=random have no effect",
        ),
    ],
)
def test_it_goes_on_with_messages_and_names_what_has_no_effect(failing, capsys, options, learners, rest):
    for rank in range(learners + 2):
        assert connect(Roles(None, rank, learners, 2, learners), SIZES, options) is None
    assert capsys.readouterr().err == f"{BEGIN}{rest}\n", "rank 0 only"


def test_it_ends_where_windows_are_required(failing):
    with pytest.raises(UserError, match=r"workflow.one_sided=required, but .* \(no room\): set it to auto"):
        connect(Roles(None, 0, 1, 2, 1), SIZES, RmaOptions("actor", one_sided="required"))


def test_it_does_not_try_if_not_allowed():
    assert connect(Roles(None, 0, 1, 2, 1), SIZES, RmaOptions("actor", one_sided="never")) is None
