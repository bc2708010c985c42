"""vLLM as the engine of batch jobs: configs/slurm/campaign.sbatch on a real Slurm, two jobs of one campaign one after the other. The
second, on fewer nodes, loads from Lustre's place what the first one computed, and answers with the same tokens.
"""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import time

from engines import Failed, daemon
from engines.daemon import ROOT, check
from engines.environment import Missing
from engines.vllm import engine, install

NODES = 3
SEEDS, PREFIX = [1, 2], 1024
JOB_SECONDS = 900
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

# The settings of the launcher are for a GPU; a CPU needs another class, and this machine has less memory.
FOR_CPU = """
import json, os
kv = json.loads(os.environ["KV_TRANSFER_CONFIG"])
kv["kv_connector_extra_config"].update(spec_name="CpuPlatformTieringSpec", spec_module_path="cascade_kv.vllm", cpu_bytes_to_use=128 << 20)
print(json.dumps(kv))
"""


def test(work, program=None):
    if os.geteuid() != 0 or not (shutil.which("slurmctld") or pathlib.Path("/usr/sbin/slurmctld").exists()):
        raise Missing("Slurm's daemons, as root: make tools installs them")
    program = pathlib.Path(program or ROOT / "bin" / "cascaded")
    home = install.home()
    orders = work / "orders"
    orders.write_text(json.dumps({"seeds": SEEDS, "tokens": PREFIX}) + "\n")
    with cluster() as conf:
        jobs = [job(work, conf, home, program, orders, name, nodes) for name, nodes in (("first", NODES), ("second", NODES - 1))]
    first, second = ([r["tokens"] for r in one["requests"]] for one in jobs)
    check(sum(len(t) for t in first) > 0 and first == second, "two jobs of a campaign answer with the same tokens")
    cached = [sum(r["cached"] for r in one["requests"]) for one in jobs]
    check(cached[0] == 0 and cached[1] >= 0.95 * len(SEEDS) * PREFIX, f"the second job loads what the first computed: {cached} of {len(SEEDS) * PREFIX} tokens")
    left = [str(p) for p in pathlib.Path("/dev/shm").glob(f"{work.name}*")]
    check(not left, f"nothing is left in /dev/shm: {left}")
    return {"cached": cached, "tokens": len(SEEDS) * PREFIX}


@contextlib.contextmanager
def cluster():
    """A Slurm of NODES slurmds on this machine; its configuration. Its folder has a short name, for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        daemon.run([ROOT / "scripts" / "slurm-up.sh", folder, NODES, os.getpid()], timeout=120, what="slurm-up.sh")
        try:
            yield pathlib.Path(folder) / "slurm.conf"
        finally:
            subprocess.run([ROOT / "scripts" / "slurm-down.sh", folder], check=False, timeout=120)


def job(work, conf, home, program, orders, name, nodes):
    """What generate.py answers as the engine of a job. Ranks of several slurmds share this machine: they differ by their numbers."""
    config = work / "cascade.toml"
    config.write_text(f'socket = "{work}/r{{rank}}.sock"\n[shm]\npath = "/dev/shm/{work.name}-{{rank}}.arena"\n'
                      f'[lustre]\nindex = "{work}/index"\n[peers]\nadvertise = "127.0.0.1"\n')
    python, generate = home / "bin" / "python", engine.HERE / "generate.py"
    script = (f'kv=$({shlex.quote(str(python))} -c {shlex.quote(FOR_CPU)}) && '
              f'exec {shlex.quote(str(python))} {shlex.quote(str(generate))} {shlex.quote(str(install.model(home)))} "$kv" <{shlex.quote(str(orders))}')
    out = work / f"{name}.out"
    env = {**engine.env(), "SLURM_CONF": str(conf), "CASCADE": str(program.with_name("cascade")), "CASCADE_CONFIG": str(config),
           "CASCADE_LUSTRE_DIR": str(work / "kv"), "CASCADE_SHM_BYTES": "256MiB"}
    number = daemon.run(["sbatch", "--parsable", f"--chdir={work}", f"--output={out}", f"--nodes={nodes}", "--time=20",
                         ROOT / "configs" / "slurm" / "campaign.sbatch", "bash", "-c", script], timeout=60, what="sbatch", env=env).strip()
    state = ended(conf, number)
    text = out.read_text(errors="replace") if out.exists() else ""
    answers = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")]
    if state != "COMPLETED" or len(answers) != 2:
        logs = "".join(p.read_text(errors="replace")[-1500:] for p in sorted(work.glob("cascade-*.log")))
        raise Failed(f"the {name} job is {state} with {len(answers)} answers: {text[-3000:]}\n{logs}")
    return answers[1]


def ended(conf, number):
    """The state in which a job ends."""
    deadline = time.monotonic() + JOB_SECONDS
    while time.monotonic() < deadline:
        shown = daemon.run(["scontrol", "show", "job", number], timeout=60, what="scontrol", env={**os.environ, "SLURM_CONF": str(conf)})
        state = next(w[9:] for w in shown.split() if w.startswith("JobState="))
        if state in ENDED:
            return state
        time.sleep(0.5)
    daemon.run(["scancel", number], timeout=60, what="scancel", env={**os.environ, "SLURM_CONF": str(conf)})
    raise Failed(f"job {number} does not end within {JOB_SECONDS} s")
