"""vllm_serving.py CHECKPOINT [--clients 1,8,32] [--prompt 2048] [--output 64] [--kv ,k8v8] [--csv FILE]: vLLM's OpenAI server with its own attention
and with ropewalk's, in turn.

Each client sends a request when its last one is answered. Prompts are random tokens, prefix caching is off. Prints, for each server and number of
clients, a row of a table: tokens read and written per second, and time to the first and between tokens. With --csv lengths come from a file with
columns ContextTokens and GeneratedTokens (the Azure LLM inference traces), those that fit, in its order."""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import aiohttp

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--clients", default="1,8,32")
parser.add_argument("--requests", type=int, help="for each number of clients; default: one for each client, at least 4")
parser.add_argument("--prompt", type=int, default=2048)
parser.add_argument("--output", type=int, default=64)
parser.add_argument("--csv", help="lengths of requests; --prompt and --output are then the most that is taken")
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--kv", default="", help="types of K and V for ropewalk, one server each, with commas; empty: dtype")
parser.add_argument("--rounds", type=int, default=1, help="how often the servers take turns")
parser.add_argument("--port", type=int, default=8127)
parser.add_argument("--kv-space", default="2", help="GiB of KV cache")
parser.add_argument("--bind", default="nobind", help="VLLM_CPU_OMP_THREADS_BIND")
parser.add_argument("--eager", action="store_true", help="the servers do not compile the model: they start sooner")
arguments = parser.parse_args()
URL = f"http://127.0.0.1:{arguments.port}"


def lengths(count):
    """(tokens of the prompt, tokens to write) of `count` requests."""
    if not arguments.csv:
        return [(arguments.prompt, arguments.output)] * count
    with open(arguments.csv, newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    fitting = [row for row in rows if 1 <= row[0] <= arguments.prompt and 2 <= row[1] <= arguments.output]
    if len(fitting) < count:
        raise SystemExit(f"{arguments.csv}: {len(fitting)} requests of at most {arguments.prompt} and {arguments.output} tokens; expected {count}")
    return fitting[:count]


@contextlib.contextmanager
def server(way, kv):
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", arguments.checkpoint, "--served-model-name", "m", "--host",
               "127.0.0.1", "--port", str(arguments.port), "--dtype", arguments.dtype, "--max-model-len", str(arguments.prompt + arguments.output),
               "--no-enable-prefix-caching", *(["--enforce-eager"] if arguments.eager else [])]  # fmt: skip
    environment = os.environ | {"ROPEWALK_VLLM": way, "ROPEWALK_VLLM_KV": kv, "VLLM_CPU_KVCACHE_SPACE": arguments.kv_space,
                                "VLLM_CPU_OMP_THREADS_BIND": arguments.bind, "VLLM_NO_USAGE_STATS": "1"}  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            asyncio.run(ready(process, log))
            log.seek(0)
            yield next((line.split("KV cache size: ")[1].split(" ")[0] for line in log if "KV cache size: " in line), "?")
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


async def ready(process, log):
    async with aiohttp.ClientSession() as session:
        while process.poll() is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{URL}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(1)
    log.seek(0)
    raise SystemExit(log.read()[-10000:])


async def request(session, random_tokens, prompt, output):
    """Time of the first token and times between tokens, in seconds."""
    body = {"model": "m", "prompt": random_tokens(prompt), "max_tokens": output, "temperature": 0, "ignore_eos": True, "stream": True}
    begin = last = time.perf_counter()
    times = []
    async with session.post(f"{URL}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                now = time.perf_counter()
                times.append(now - last)
                last = now
    return times[0], (last - begin - times[0]) / max(output - 1, 1)


async def load(clients, requests):
    """`requests` by so many clients: seconds in all, and what request() says of each."""
    numbers = random.Random(7)
    waiting = list(reversed(requests))
    results = []

    async def client(session):
        while waiting:
            results.append(await request(session, lambda count: [numbers.randrange(10, 49000) for _ in range(count)], *waiting.pop()))

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**20) as session:
        begin = time.perf_counter()
        await asyncio.gather(*[client(session) for _ in range(clients)])
        return time.perf_counter() - begin, results


def measure(name, way, kv):
    with server(way, kv) as kv_tokens:
        asyncio.run(load(2, lengths(2)))  # warm
        for clients in map(int, arguments.clients.split(",")):
            requests = lengths(arguments.requests or max(clients, 4))
            seconds, results = asyncio.run(load(clients, requests))
            read, written = (sum(column) for column in zip(*requests, strict=True))
            first, between = zip(*results, strict=True)
            print(
                f"| {clients} | {name} | {kv_tokens} | {(read + written) / seconds:.0f} | {written / seconds:.1f} | {statistics.mean(first):.2f} s "
                f"| {1e3 * statistics.mean(between):.0f} ms |",
                flush=True,
            )


print("| clients | attention | KV tokens | tokens/s | written/s | first token | between tokens |\n|---|---|---|---|---|---|---|", flush=True)
servers = [("vLLM's own", "", "")] + [(f"ropewalk{kv and ', '}{kv}", "override", kv) for kv in arguments.kv.split(",")]
for turn in range(arguments.rounds):
    for row in servers if turn % 2 == 0 else reversed(servers):
        measure(*row)
