"""Calls spread over processes: answers, and calls that die, hang or raise."""

from __future__ import annotations

import os
import signal
import time

import pytest

from gluon_core.processes import Ended, Process, each

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]
CALL = f"{__name__}:act"


def act(action, value):
    if action == "abort":
        print("about to abort", flush=True)
        os.abort()
    if action == "sleep":
        time.sleep(value)
    if action == "raise":
        raise ValueError(value)
    if action == "lambda":
        return lambda: value
    return value, os.getpid()


def outcomes(jobs, count=2, **more):
    return {job: answer for job, answer in each(CALL, jobs, count, **more)}


def test_each_call_is_answered_by_one_of_so_many_processes():
    answers = outcomes([("square", n) for n in range(8)])
    assert [answers["square", n][0] for n in range(8)] == list(range(8))
    pids = {pid for _, pid in answers.values()}
    assert len(pids) <= 2 and os.getpid() not in pids


def test_a_process_that_dies_costs_its_call_alone():
    answers = outcomes([("value", 1), ("abort", 0), ("value", 2), ("value", 3)])
    assert isinstance(answers["abort", 0], Ended)
    assert str(answers["abort", 0]) == "the process was killed by SIGABRT"
    assert [answers["value", n][0] for n in (1, 2, 3)] == [1, 2, 3]


def test_a_process_that_hangs_is_ended_and_replaced():
    begun = time.monotonic()
    answers = outcomes([("sleep", 60), ("value", 1), ("value", 2)], count=1, limit=4.0)
    assert answers["sleep", 60].hung and time.monotonic() - begun < 30
    assert [answers["value", n][0] for n in (1, 2)] == [1, 2]


def test_errors_of_a_call_are_raised_here():
    with pytest.raises(ValueError, match="seven"):
        outcomes([("raise", "seven")])


def test_an_answer_that_cannot_be_sent_is_an_error():
    with pytest.raises(RuntimeError, match="cannot be sent"):
        outcomes([("lambda", 7)])


def test_a_process_whose_answer_spends_it_takes_no_other_call():
    answers = outcomes([("value", 1), ("value", 2)], count=1, spent=lambda answer: answer[0] == 1)
    assert answers["value", 1][1] != answers["value", 2][1]


def test_jobs_are_taken_when_there_is_a_process_for_them():
    taken = []

    def jobs():
        for n in range(5):
            taken.append(n)
            yield "value", n

    calls = each(CALL, jobs(), 1)
    next(calls)
    assert taken == [0]
    calls.close()


def test_a_process_ends_with_its_parent(tmp_path):
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        process = Process(f"{__name__}:idle")
        os.write(write, str(process.pid).encode())
        time.sleep(1.0)
        os._exit(0)
    pid = int(os.read(read, 20))
    os.waitpid(parent, 0)
    for number in (read, write):
        os.close(number)
    until = time.monotonic() + 20
    while time.monotonic() < until and _running(pid):
        time.sleep(0.1)
    assert not _running(pid)


def idle(link):
    time.sleep(60)


def _running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_output_of_a_process_is_kept():
    process = Process(f"{__name__}:aborting")
    try:
        with pytest.raises(Ended, match="killed by SIGABRT"):
            process.receive()
        assert "about to abort" in process.output()
    finally:
        process.end()


def aborting(link):
    act("abort", 0)


def test_a_process_is_ended_with_its_children():
    process = Process(f"{__name__}:parent_of_one")
    kind, child = process.receive(time.monotonic() + 60)
    assert kind == "child" and _running(child)
    process.end()
    until = time.monotonic() + 10
    while time.monotonic() < until and _running(child):
        time.sleep(0.05)
    assert not _running(child)


def parent_of_one(link):
    child = os.fork()
    if child == 0:
        signal.pause()
    link.answer("child", child)
    signal.pause()
