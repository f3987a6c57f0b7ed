"""Run the smoke test inside a job: one process of this on each node. Node 0 tells the others what to run.

What was run, and how it ended, is printed to the log at the end. `imagebuilder report --from-log` judges it.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

MARKER = "@imagebuilder-job"
# A write of up to 4096 bytes is one piece, also if several nodes write to one pipe.
PIECE = 3000
KEPT = 1 << 17
MEET_SECONDS = 300
GRACE = 5.0
SPARE = 20.0
LONGEST = 1 << 26
# What a launcher tells its ranks, which would confuse a launcher that a rank starts.
OWN = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYD", "MPI_LOCAL", "TORCHELASTIC_", "TORCH_NCCL_ASYNC", "GROUP_")
OWN += ("RANK", "WORLD_SIZE", "LOCAL_", "ROLE_", "MASTER_", "OMP_NUM_THREADS", "PET_")


def main() -> int:
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    # mpirun binds each rank to a core, and everything that a rank starts.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    node, size, place = who(plan)
    if size != plan["nodes"]:
        sys.exit(f"imagebuilder: this job should have {plan['nodes']} nodes, and has {size}")
    try:
        agent = Agent(plan, folder, node)
        if node:
            follow(agent, place)
        else:
            lead(agent, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def who(plan):
    """Return this node's number, how many there are, and host and port of node 0."""
    if "MASTER_ADDR" in os.environ and "RANK" in os.environ:
        place = (os.environ["MASTER_ADDR"], plan["port"])
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), place
    return by_mpi(plan)


def by_mpi(plan):
    """Ask MPI, and let it tell all nodes the address of the first."""
    import mpi_sum

    library, world, number, _ = mpi_sum.handles()
    rank, size = ctypes.c_int(), ctypes.c_int()
    library.MPI_Init(None, None)
    library.MPI_Comm_rank(world, ctypes.byref(rank))
    library.MPI_Comm_size(world, ctypes.byref(size))
    address = array.array("q", own_address().encode()[:256].ljust(256))
    library.MPI_Bcast(ctypes.c_void_p(address.buffer_info()[0]), ctypes.c_int(len(address)), number, 0, world)
    library.MPI_Finalize()
    return rank.value, size.value, (address.tobytes().decode().strip(), plan["port"])


def own_address():
    """Return the address by which other hosts reach this one, as far as this one knows."""
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        if not found.startswith("127."):
            return found
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel picks the route
        return probe.getsockname()[0]
    return socket.gethostname()


class Agent:
    """One node: it runs what it is told, and keeps how it ended."""

    def __init__(self, plan, folder, node):
        self.plan, self.folder, self.node = plan, folder, node
        self.live = set()
        self.lock = threading.Lock()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
        own = {name: value for name, value in plan["environment"].items() if name.startswith(OWN)}
        self.environment = {**kept, **own}
        self.record = {"node": node, "nonce": plan["nonce"], **facts(), "outcomes": []}

    def run(self, step, jobs):
        """Run this node's jobs of a step, all at once; returns whether each ended with 0."""
        threads, fine = [], []
        for index, job in enumerate(jobs):
            if job["node"] == self.node:
                thread = threading.Thread(target=lambda i=index, j=job: fine.append(self.one(step, i, j)))
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()
        return all(fine)

    def one(self, step, index, job):
        """Run one command, and keep how it ended."""
        started = time.monotonic()
        argv = ["timeout", "-k", "5", f"{job['timeout']:g}", *job["argv"]]
        code, stdout, stderr = None, b"", b""
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.environment, **job["env"]},
                cwd=self.folder,
                start_new_session=True,
            )
        except OSError as error:
            stderr = str(error).encode()
        else:
            with self.lock:
                self.live.add(child)
            try:
                stdout, stderr = child.communicate(timeout=job["timeout"] + SPARE)
            except subprocess.TimeoutExpired:
                end(child, signal.SIGKILL)
                stdout, stderr = child.communicate()
            with self.lock:
                self.live.discard(child)
            code = 128 - child.returncode if child.returncode < 0 else child.returncode
        seconds = time.monotonic() - started
        outcome = {
            "step": step,
            "job": index,
            "code": code,
            "timed_out": code in (124, 137) and seconds >= job["timeout"],
            "seconds": round(seconds, 3),
            "stdout": shortened(stdout),
            "stderr": shortened(stderr),
        }
        with self.lock:
            self.record["outcomes"].append(outcome)
        return code == 0

    def stop(self):
        """End what runs."""
        with self.lock:
            for child in self.live:
                end(child, signal.SIGTERM)

    def packed(self):
        """Return the record as it stands in the log."""
        return zlib.compress(json.dumps(self.record).encode(), 9)


def end(child, number):
    with contextlib.suppress(OSError):
        os.killpg(child.pid, number)


def shortened(data):
    """Keep beginning and end of an output."""
    text = data.decode("utf-8", "replace")
    return text if len(text) <= 2 * KEPT else f"{text[:KEPT]}\n[...]\n{text[-KEPT:]}"


def facts():
    """Say what this node is."""
    listed = ""
    if shutil.which("nvidia-smi"):
        words = ("nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout
    return {
        "own_name": socket.gethostname(),
        "names": [socket.gethostname(), socket.getfqdn(), own_address()],
        "cores": os.cpu_count() or 1,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "nvidia_smi": listed[:65536],
        "python": sys.executable,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class Line:
    """Messages as lines of JSON on a connection."""

    def __init__(self, connection):
        self.connection, self.file = connection, connection.makefile("rb")
        self.lock = threading.Lock()

    def send(self, message):
        with self.lock:
            self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, longest=LONGEST):
        line = self.file.readline(longest)
        if not line.endswith(b"\n"):
            raise ConnectionError("the other node ended, or said too much")
        return json.loads(line)


def follow(agent, place):
    """Do what node 0 says."""
    until = time.monotonic() + MEET_SECONDS
    while True:
        try:
            connection = socket.create_connection(place, timeout=10)
            break
        except OSError as error:
            if time.monotonic() > until:
                sys.exit(f"imagebuilder: node 0 does not answer at {place[0]}:{place[1]}: {error}")
            time.sleep(0.5)
    connection.settimeout(None)
    line = Line(connection)
    line.send({"nonce": agent.plan["nonce"], "node": agent.node, "record": agent.record})

    def run(message):
        line.send({"fine": agent.run(message["step"], message["jobs"])})

    while True:
        message = line.receive()
        if "resolve" in message:
            line.send({"found": resolved(message["resolve"])})
        elif "run" in message:
            threading.Thread(target=run, args=(message["run"],), daemon=True).start()
        elif "stop" in message:
            agent.stop()
        else:
            packed = agent.packed()
            line.send({"record": base64.b64encode(packed).decode()})
            tell(agent.plan, agent.node, packed)
            return


def resolved(names):
    """Return the address of each name; empty if it has none, or the loopback's."""
    found = []
    for name in names:
        try:
            address = socket.gethostbyname(name)
        except (OSError, UnicodeError):
            address = ""
        found.append("" if address.startswith("127.") else address)
    return found


def lead(agent, place):
    """Tell all nodes what to run, step by step; print what all of them say at the end."""
    plan = agent.plan
    others = meet(plan, place[1])
    records = {0: agent.record, **{node: record for node, (_, record) in others.items()}}
    lines = {node: line for node, (line, _) in others.items()}
    agent.record["hosts"] = hosts = choose(lines, [records[node]["names"] for node in range(plan["nodes"])])
    agent.record["ports"] = ports = []
    agent.record["order"] = plan["order"]
    words = {"@SMOKE@": str(agent.folder), "@PYTHON@": sys.executable}
    for node in range(plan["nodes"]):
        words[f"@HOST{node}@"], words[f"@ADDRESS{node}@"] = hosts[node], records[node]["names"][2]
    for number, step in enumerate(plan["steps"]):
        for name in step["ports"]:
            ports.append(free_port())
            words[name] = str(ports[-1])
        jobs = [filled(job, words) for job in step["jobs"]]
        started = time.monotonic()
        fine = together(agent, lines, number, jobs, GRACE if step["grace"] is None else step["grace"])
        seconds = time.monotonic() - started
        count = f"{number + 1} of {len(plan['steps'])}"
        note(f"step {count}, {step['check']}: {'ended' if fine else 'failed'} after {seconds:.1f} s")
    packed = {0: agent.packed()}
    for node, line in lines.items():
        line.send({"end": True})
        packed[node] = base64.b64decode(line.receive()["record"])
    for node in sorted(packed):
        tell(plan, node, packed[node])
    note("to read this log: imagebuilder report --from-log FILE")


def meet(plan, port):
    """Wait for all other nodes; returns each one's connection and record. Others are turned away."""
    found = {}
    until = time.monotonic() + MEET_SECONDS
    with socket.create_server(("", port), backlog=64) as server:
        while len(found) < plan["nodes"] - 1:
            server.settimeout(max(until - time.monotonic(), 0.01))
            try:
                connection, _ = server.accept()
            except OSError:
                missing = [str(node) for node in range(1, plan["nodes"]) if node not in found]
                sys.exit(f"imagebuilder: no word of node {', '.join(missing)} within {MEET_SECONDS} s")
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                connection.settimeout(10)
                line = Line(connection)
                said = line.receive(1 << 16)
                node = said["node"]
                is_ours = hmac.compare_digest(str(said["nonce"]).encode(), plan["nonce"].encode())
                if is_ours and node in range(1, plan["nodes"]) and node not in found:
                    connection.settimeout(None)
                    found[node] = (line, said["record"])
                    continue
            connection.close()
    return found


def choose(lines, names):
    """Choose the names by which all nodes reach each other: short, or with a domain, or addresses."""
    for kind in (0, 1):
        asked = [each[kind] for each in names]
        answers = [resolved(asked)]
        for line in lines.values():
            line.send({"resolve": asked})
        answers += [line.receive()["found"] for line in lines.values()]
        if all(all(answer) for answer in answers):
            return asked
    return [each[2] for each in names]


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def filled(job, words):
    """Put this job's names and ports into a command."""

    def put(text):
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    env = {name: put(value) for name, value in job["env"].items()}
    return {**job, "argv": [put(word) for word in job["argv"]], "env": env}


def together(agent, lines, number, jobs, grace):
    """Run a step on its nodes. When one fails, the others are ended after some seconds of grace."""
    asked = {job["node"] for job in jobs}
    fine, done = {}, threading.Condition()

    def ended(node, result):
        with done:
            fine[node] = result
            done.notify()

    def other(node):
        lines[node].send({"run": {"step": number, "jobs": jobs}})
        ended(node, lines[node].receive()["fine"])

    for node in asked:
        work = other if node else lambda _node: ended(0, agent.run(number, jobs))
        threading.Thread(target=work, args=(node,), daemon=True).start()
    until = time.monotonic() + max(job["timeout"] for job in jobs) + 2 * SPARE
    stop_at = None
    with done:
        while len(fine) < len(asked):
            now = time.monotonic()
            if now > until:
                sys.exit(f"imagebuilder: step {number + 1} has no end")
            if stop_at is None and not all(fine.values()):
                stop_at = now + grace
            if stop_at is not None and now >= stop_at:
                stop_at = until
                agent.stop()
                for node in asked - set(fine) - {0}:
                    lines[node].send({"stop": True})
            done.wait(0.2)
    return all(fine.values())


def tell(plan, node, packed):
    """Print a node's record, in lines that say by themselves where they belong."""
    text = base64.b64encode(packed).decode()
    pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
    digest = hashlib.sha256(packed).hexdigest()
    for number, piece in enumerate(pieces, 1):
        head = f"{MARKER} {plan['nonce']} {node}/{plan['nodes']} {number}/{len(pieces)} {digest}"
        os.write(1, f"{head} {piece}\n".encode())


def note(text):
    os.write(1, f"imagebuilder: {text}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
