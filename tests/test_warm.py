"""Apps forked from a warm process: as if they had been started, and in Flower's way where that cannot be."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsps.deploy import commands
from fedsps.deploy.processes import wait_until
from fedsps.deploy.up import COLD
from fedsps.flower import warm

APP = """
import json, os, sys
from pathlib import Path
import numpy as np

def main():
    seen = {"was there": [name for name in ("calm", "threaded", "own") if name in sys.modules]}
    os.write(1, b"said by the app;")
    sys.path.insert(0, str(Path(__file__).parent / "own"))
    import calm, own, threaded
    draw = float(np.random.random())
    seen |= {"words": sys.argv, "draw": draw, "pid": os.getpid(), "session": os.getsid(0)}
    place = Path(sys.argv[1])
    place.with_suffix(".part").write_text(json.dumps(seen))
    place.with_suffix(".part").rename(place)
    sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def apps(tmp_path, monkeypatch):
    """A warm process for a program of ours: `calm` and `threaded` are installed, `own` is the program's."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "program.py").write_text(APP)
    (tmp_path / "own" / "own.py").write_text("")
    (tmp_path / "installed" / "calm.py").write_text("")
    started = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "installed" / "threaded.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(warm, "get_path", lambda kind: str(tmp_path / "installed"))
    monkeypatch.setattr(warm, "APPS", {"flwr-clientapp": ("program", "main")})
    monkeypatch.setattr(warm, "IMPORTED", ("numpy.random", "program"))
    monkeypatch.setattr(warm.subprocess, "Popen", lambda words, **options: cold.append(words))
    cold, made = [], []

    class Apps:
        folder, threads, called = tmp_path, started, cold

        def make(self):
            made.append(warm.Warm(warm.Pace(1.0)))
            return made[-1]

        def ask(self, one, number, **options):
            """Start the program; what it saw."""
            place = tmp_path / f"seen-{number}.json"
            one.popen(["flwr-clientapp", str(place), "0"], **options)
            assert wait_until(lambda: place.exists() or bool(cold), 30)
            return {} if cold else warm.json.loads(place.read_text())

    yield Apps()
    for one in made:
        one.close()
        assert not one._process.is_alive()


def test_an_app_runs_as_if_it_had_been_started(apps, capfd):
    one = apps.make()
    first, second = apps.ask(one, 1), apps.ask(one, 2, stdout=subprocess.DEVNULL)
    assert first["words"] == ["flwr-clientapp", str(apps.folder / "seen-1.json"), "0"]
    assert len({first["pid"], second["pid"], os.getpid()}) == 3, "a process each"
    assert first["draw"] != second["draw"], "noise that repeats hides nothing"
    assert first["session"] == os.getsid(0), "whoever ends the executor's group ends the app"
    assert capfd.readouterr().out.count("said by the app") == 1, "the second was to be silent"
    assert not apps.called


def test_what_is_installed_is_learned_and_the_app_itself_is_not(apps):
    one = apps.make()
    assert apps.ask(one, 1)["was there"] == []

    def learned():
        return apps.ask(one, time.monotonic_ns())["was there"] == ["calm", "threaded"]

    assert wait_until(learned, 30)


def test_a_module_that_starts_threads_is_not_learned(apps):
    (apps.folder / "installed" / "threaded.py").write_text(apps.threads)
    one = apps.make()
    for _ in range(4):
        assert apps.ask(one, time.monotonic_ns())["was there"] == []
        time.sleep(0.3)
    assert not apps.called


def test_a_process_with_threads_is_not_forked(apps, monkeypatch, capfd):
    (apps.folder / "installed" / "threaded.py").write_text(apps.threads)
    monkeypatch.setattr(warm, "IMPORTED", ("numpy", "threaded"))
    one = apps.make()
    apps.ask(one, 1)
    apps.ask(one, 2)
    assert [words[0] for words in apps.called] == ["flwr-clientapp"] * 2
    shown = capfd.readouterr().out
    assert "note: the process to fork from cannot be used, its imports have started threads: " in shown
    assert shown.count("note:") == 1


def test_a_killed_process_is_replaced_by_flowers_way(apps, capfd):
    one = apps.make()
    # what the app imports is learned by a fork that takes over: only then is it known who is to be killed
    assert wait_until(lambda: apps.ask(one, time.monotonic_ns())["was there"] == ["calm", "threaded"], 30)
    for pid in family(one._process.pid):
        os.kill(pid, signal.SIGKILL)
    one._process.join()
    apps.ask(one, 2)
    assert len(apps.called) == 1
    assert "cannot be used, it is gone: a process is started for each message" in capfd.readouterr().out


def family(pid):
    """A process and all that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(other for child in children for other in family(int(child)))]


def test_other_programs_are_started(apps):
    one = apps.make()
    one.popen(["flwr-simulation", "--token", "t"])
    assert apps.called == [["flwr-simulation", "--token", "t"]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environ": {COLD: "0"}}, ""),
        ({"version": lambda name: "1.42.0"}, "note: Flower is 1.42.0, and how it is kept warm is known of 1.41.0: "),
        ({"platform": "darwin"}, "note: processes are forked on Linux, this is darwin: "),
    ],
)
def test_flowers_way_where_it_is_asked_for_or_nothing_else_is_known(changes, said, monkeypatch, capfd):
    assert warm._is_possible()
    for name, value in changes.items():
        if name == "environ":
            monkeypatch.setenv(COLD, value[COLD])
        else:
            monkeypatch.setattr(warm.sys if name == "platform" else warm, name, value)
    called = []
    monkeypatch.setattr(warm, "_called", lambda *words: called.append(words))
    monkeypatch.setattr(warm, "Warm", None)
    warm.superexec()
    assert called == [("flwr.supercore.cli", "flower_superexec")]
    assert capfd.readouterr().out.startswith(said)


def test_what_is_changed_in_flower_is_there():
    """The places that are put in order in Flower 1.41; another version may have moved them."""
    from flwr.supercore.superexec import run_superexec
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supernode import start_client_internal

    assert run_superexec.time is start_client_internal.time is time
    assert subprocess_executor.subprocess is subprocess
    assert run_superexec._DEFAULT_TASK_POLL_INTERVAL_SECONDS == 1.0
    assert {name for name, (module, _) in warm.APPS.items() if module} == {"flwr-clientapp", "flwr-serverapp"}


def test_the_less_there_is_to_do_the_longer_it_waits(monkeypatch):
    now = iter([100.0, 100.0, 101.0, 110.0, 130.0, 200.0])
    monkeypatch.setattr(warm.time, "monotonic", lambda: next(now))
    pace = warm.Pace(idle=3)
    assert [pace.pause(3) for _ in range(5)] == pytest.approx([0.2, 0.2, 1.0, 3.0, 3.0])
    monkeypatch.setattr(warm.time, "monotonic", lambda: 300.0)
    assert pace.pause(0.5) == 0.2, "it waits for an app"
    assert pace.pause(3) == 0.2


def test_a_client_imports_neither_pandas_nor_sklearn():
    program = "import sys; from fedsps.flower import warm; [__import__(name) for name in warm.IMPORTED]; "
    program += "print({'pandas', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules), warm.threads())"
    alone = {**os.environ, warm.ONE_THREAD: "1"}
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=alone, check=True)
    assert shown.stdout.strip() == "set() []"


def test_a_stranger_to_the_program_is_told_its_words():
    ended = subprocess.run([sys.executable, *commands.WARM[1:], "serve"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "python -P -m fedsps.flower.warm superexec|supernode OPTIONS, got 'serve'\n"
