#!/usr/bin/env python3
"""Records what real servers say, as inputs for the fuzz targets to start from: fuzz/record.py [OUT], default fuzz/corpus.

Takes all servers of tests/servers.sh that are there. `fuzz/TARGET -merge=1 fuzz/seeds/TARGET OUT/TARGET` keeps of them what
reaches something new.
"""
import os, pathlib, re, socket, subprocess, sys, tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent
SERVERS = pathlib.Path(os.environ.get("KEYFERRY_SERVERS", pathlib.Path.home() / ".cache/keyferry/servers"))
OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "corpus"
# As smoke.sh tells libFuzzer.
INPUT_BYTES_MAX = 4096
# The bytes that steer each target, before what it is fed (fuzz_targets/).
CUTS = b"\x40\x09\xff\x01"


def words():
    """The commands that tests/rdb/servers.rs has servers make their values by."""
    text = (ROOT.parent / "tests/rdb/servers.rs").read_text()
    table = text.split("const LINES: &[&str] = &[", 1)[1].split("\n];", 1)[0]
    return [line.strip().strip('",').split(" ") for line in table.splitlines() if line.strip()]


class Server:
    def __init__(self, name, cluster=False):
        self.dir = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1] % 20000 + 10000
        args = ["--port", str(self.port), "--save", "", "--dir", self.dir.name] + ["--repl-diskless-sync-delay", "0"] * (
            name != "redis-2.8") + ["--cluster-enabled", "yes"] * cluster
        self.process = subprocess.Popen([SERVERS / name / "bin/redis-server", *args], stdout=subprocess.DEVNULL)
        self.socket = self.connect()
        self.file = self.socket.makefile("rb")

    def connect(self):
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=5)
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"no server on port {self.port}")

    def raw(self, *args):
        """The reply to a command as its bytes came."""
        args = [a if isinstance(a, bytes) else str(a).encode() for a in args]
        self.socket.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a) for a in args))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if line[:1] == b"$" and line != b"$-1\r\n":
            return line + self.file.read(int(line[1:]) + 2)
        if line[:1] == b"*" and line != b"*-1\r\n":
            return line + b"".join(self.reply() for _ in range(int(line[1:])))
        return line

    def bulk(self, *args):
        reply = self.raw(*args)
        return reply.split(b"\r\n", 1)[1][:-2] if reply[:1] == b"$" and reply != b"$-1\r\n" else b""

    def end(self):
        self.process.kill()
        self.process.wait()
        self.dir.cleanup()


def keep(target, name, data):
    if len(data) <= INPUT_BYTES_MAX:
        folder = OUT / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def keep_in_parts(target, name, steering, data, ends):
    """In parts that end where a whole one of its items does."""
    start = last = 0
    for end in ends + [len(data)]:
        if end - start > INPUT_BYTES_MAX - 64 and last > start:
            keep(target, f"{name}-{start}", steering + data[start:last])
            start = last
        last = end
    keep(target, f"{name}-{start}", steering + data[start:])


def values(name, server):
    """Each value as the only key of a file, its payload's type in front, and what is packed by LZF."""
    version = server.bulk("DUMP", "s")[-10]
    magic = b"VALKEY%03d" % version if version >= 80 else b"REDIS%04d" % version
    keys = server.raw("KEYS", "*").split(b"\r\n")[2::2]
    for n, key in enumerate(keys):
        payload = server.bulk("DUMP", key)
        value = payload[1:-10]
        for way in range(3):
            file = magic + b"\xfe\x00" + payload[:1] + b"\x01k" + value + b"\xff" + bytes(8)
            keep("rdb_feed", f"{name}-{n}-{way}", bytes([way | 4 * (way == 1)]) + CUTS[1:] + file)
        if value[:1] == b"\xc3":
            keep("lzf", f"{name}-{n}", len(value).to_bytes(3, "little") + value[4:])


def stream(name, server):
    """What a replica gets behind the snapshot."""
    replica = server.connect()
    replica.sendall(b"PSYNC ? -1\r\n" if name != "redis-2.8" else b"SYNC\r\n")
    replica.settimeout(1.5)
    got = b""
    try:
        while True:
            got += replica.recv(1 << 16)
            if b"REDIS" in got or b"VALKEY" in got:
                break
        time.sleep(1)
        for line in words():
            server.raw(*line)
        server.raw("MULTI"), server.raw("INCR", "n"), server.raw("SET", "e", 1, "EX", 100), server.raw("EXEC")
        while True:
            got += replica.recv(1 << 16)
    except TimeoutError:
        pass
    lines = got.split(b"\r\n", 2)
    keep("handshake", f"{name}-psync", CUTS + lines[0])
    at = got.rfind(b"*2\r\n$6\r\nSELECT")
    commands = got[at:]
    ends = [i for i in range(1, len(commands)) if commands[i:i + 1] == b"*" and commands[i - 1:i] == b"\n"]
    keep_in_parts("command_stream", name, CUTS, commands, ends)


def replies(name, server):
    # Not what it says of the machine.
    info = re.sub(rb"(?m)^(os|executable|config_file):.*\n", b"", server.bulk("INFO"))
    keep("handshake", f"{name}-info", CUTS + info[:INPUT_BYTES_MAX - 4])
    for n, args in enumerate([("INFO", "replication"), ("INFO", "keyspace"), ("ROLE",), ("CLIENT", "LIST"), ("COMMAND", "INFO", "GET"),
                              ("XINFO", "STREAM", "xg"), ("XINFO", "GROUPS", "xg"), ("SCAN", "0"), ("NOCOMMAND",), ("GET", "none"),
                              ("HGETALL", "h"), ("TIME",), ("MULTI",), ("GET", "s"), ("LLEN", "s"), ("EXEC",), ("EXEC",)]):
        reply = server.raw(*args)
        keep("reply", f"{name}-{n}", CUTS + reply)
        if reply[:1] == b"-":
            keep("handshake", f"{name}-error-{n}", CUTS + reply)


def topology(name):
    try:
        node = Server(name, cluster=True)
    except SystemExit:
        return
    node.raw("CLUSTER", "ADDSLOTS", *range(0, 5000)), node.raw("CLUSTER", "ADDSLOTS", 5002, 16383)
    node.raw("CLUSTER", "MEET", "127.0.0.1", node.port + 1)
    node.raw("CLUSTER", "SETSLOT", 7, "MIGRATING", "a" * 40)
    keep("topology", f"{name}-nodes", b"\x00" + node.bulk("CLUSTER", "NODES"))
    for way, word in ((1, "SHARDS"), (2, "SLOTS")):
        reply = node.raw("CLUSTER", word)
        keep("topology", f"{name}-{word.lower()}", bytes([way]) + reply)
        keep("reply", f"{name}-{word.lower()}", CUTS + reply)
    node.end()


for name in sorted(path.name for path in SERVERS.iterdir() if not path.name.startswith((".", "stack"))):
    server = Server(name)
    for line in words():
        server.raw(*line)
    server.raw("SET", "lzf", "z" * 2000)
    server.raw("RPUSH", "llong", "z" * 900, *range(100))
    for n in range(130):
        server.raw("SADD", "sbig", f"m{n}"), server.raw("HSET", "hbig", f"f{n}", n), server.raw("ZADD", "zbig", n / 7, f"m{n}")
    values(name, server)
    replies(name, server)
    server.raw("FLUSHALL")
    stream(name, server)
    server.end()
    topology(name)
    print(name)
for job in sorted((ROOT.parent / "examples").rglob("*.toml")):
    keep("config", job.stem, job.read_bytes())
