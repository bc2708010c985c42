"""vLLM engines as child processes."""

import contextlib
import json
import pathlib
import select
import subprocess
import time

from engines import Failed, daemon
from engines.vllm import install

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 600
ANSWER_SECONDS = 300


def kv_transfer(socket, cpu_bytes, **settings):
    tier = {"type": "CascadeTier", "module_path": "cascade_kv.vllm", "socket": str(socket), **settings}
    extra = {"spec_name": "CpuPlatformTieringSpec", "spec_module_path": "cascade_kv.vllm", "cpu_bytes_to_use": cpu_bytes, "secondary_tiers": [tier]}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def env():
    return daemon.engine_env(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
                             VLLM_ENABLE_V1_MULTIPROCESSING="0", PYTHONHASHSEED="0")


def regions():
    return set(pathlib.Path("/dev/shm").glob("vllm_offload_*.mmap"))


class Engine:
    """An engine of generate.py; a context manager. said: what vLLM has logged."""

    def __init__(self, home, work, name, kv, config=None, workers=1):
        self.log = work / f"{name}.log"
        self.env = env() if workers == 1 else {**env(), "OMP_NUM_THREADS": "1"}  # or each worker's threads wait for those of the others
        self.command = [home / "bin" / "python", HERE / "generate.py", install.model(home), json.dumps(kv), json.dumps(config or {}), workers]

    def __enter__(self):
        self.before = regions()
        with self.log.open("wb") as log:
            self.child = subprocess.Popen([str(w) for w in self.command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self.env)
        self.rest, self.said = b"", ""
        self._result(START_SECONDS)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.child.stdout.close()
        for left in regions() - self.before:
            left.unlink(missing_ok=True)

    def ask(self, seeds, tokens=2048, reset=False, **more):
        self.child.stdin.write(json.dumps({"seeds": seeds, "tokens": tokens, "reset": reset, **more}).encode() + b"\n")
        self.child.stdin.flush()
        return self._result(ANSWER_SECONDS)

    def _result(self, seconds):
        deadline = time.monotonic() + seconds
        while True:
            line, newline, rest = self.rest.partition(b"\n")
            if newline:
                self.rest = rest
                if line.startswith(b"RESULT "):
                    return json.loads(line[7:])
                self.said += line.decode(errors="replace") + "\n"
                continue
            if not select.select([self.child.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failed(f"the engine did not answer within {seconds} s: {self.tail()}")
            data = self.child.stdout.read1()
            if not data:
                raise Failed(f"the engine ended: {self.tail()}")
            self.rest += data

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:]
