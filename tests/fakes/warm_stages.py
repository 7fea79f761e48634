"""`python -m stages STAGE` in forks of one process that has already imported torch and transformers.

A stage of a miniature spends four of its five seconds of CPU time on these imports. This is for tests of what stages
compute and write. It is not for tests of killed processes or edited code, because a stage's process is no child of its
caller here. The test tests/pipelines/test_gsm8k_recipe.py runs a whole graph without it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.miniature import environment

REAL = str(Path(sys.executable).parent / "python")
CLIENT = """#!{python} -SE
import json, os, socket, sys
if sys.argv[1:3] == ["-m", "pipelines.launching"]:
    sys.argv[2] = "stages"  # which it would become: miniatures train in one process
if sys.argv[1:3] != ["-m", "stages"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    told = json.dumps([os.getcwd(), dict(os.environ), sys.argv[2:]]).encode()
    socket.send_fds(server, [len(told).to_bytes(4, "big")], [1, 2])
    server.sendall(told)
    sys.exit(int(server.makefile().read() or 1))
"""


@contextmanager
def warm_stages(project: Path, folder: Path) -> Iterator[Path]:
    """Yields a folder for the front of PATH, whose `python` runs the stages of `project` in forks."""
    python, address = folder / "python", folder / "socket"
    python.write_text(CLIENT.format(python=REAL, address=str(address)))
    python.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        number = listening.fileno()
        code = f"from tests.fakes.warm_stages import serve; serve({number})"
        server = subprocess.Popen([REAL, "-c", code], cwd=project, env=environment(), pass_fds=[number])
    with server:
        try:
            yield folder
        finally:
            # Also after a failure: `with` waits for its end.
            server.kill()


def serve(listening: int) -> None:
    """Runs the requested stages one after the other; they are those of the current folder."""
    from stages.observe.quick_imports import quick_imports

    with quick_imports():
        import stages.base.run
        import stages.engines.samplers.torch_sampler
        import stages.engines.trainers.torch_trainer
        import stages.rl_round.loop.in_process
        import stages.sft.run
    import stages.report.run  # noqa: F401

    gc.freeze()  # a collection over shared memory would copy it
    with socket.socket(fileno=listening) as asked:
        while True:
            client, _ = asked.accept()
            with client:
                length, outputs, _, _ = socket.recv_fds(client, 4, 2)
                told = client.makefile("rb").read(int.from_bytes(length, "big"))
                child = os.fork()
                if not child:
                    _run(*json.loads(told), outputs)
                for output in outputs:
                    os.close(output)
                client.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _run(folder: str, own: dict[str, str], arguments: list[str], outputs: list[int]) -> None:
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    os.environ.clear()
    os.environ.update(own)
    os.chdir(folder)
    sys.argv = list(arguments)
    code = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # shown and told as exit code 1, as the interpreter would: the fork must end here
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)  # tearing down all imports takes longer than most stages
