"""Reserves ids from allocnode with the standard library alone: the NATS protocol over a socket, without TLS or passwords.

    example.py HOST:PORT[,HOST:PORT...] SEQUENCE COUNT [BODY]

It prints each request's body before it sends it: a program stores it there. With BODY, one that was stored, it sends that
first: it is answered with the range that it was given, if it was given one.
"""
import itertools, json, random, secrets, socket, sys, time

AGAIN = {"unavailable", "fenced", "unknown_outcome"}  # every other code is final


class Allocnode:
    def __init__(self, servers):
        self.servers = servers
        self.cluster = None  # of the first answer: no other is believed
        self.seen = 0        # highest seq of any answer

    def answers(self, server, subject, body):
        """Sends one try, and yields what comes as its answer until 5 s have brought nothing."""
        host, port = server.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 5) as conn, conn.makefile("rb") as stream:
            inbox = "_INBOX." + secrets.token_hex(16)
            hello = json.dumps({"verbose": False, "headers": True, "no_responders": True, "name": "example.py"})
            publish = f"PUB {subject} {inbox} {len(body)}\r\n".encode() + body + b"\r\n"
            conn.sendall(f"CONNECT {hello}\r\nSUB {inbox} 1\r\n".encode() + publish)
            while line := stream.readline():
                verb, *args = line.split()
                if verb == b"PING":
                    conn.sendall(b"PONG\r\n")
                elif verb == b"-ERR":
                    raise ConnectionError(line.decode().strip())
                elif verb in (b"MSG", b"HMSG"):  # HMSG has the length of its headers before that of the whole
                    payload = stream.read(int(args[-1]) + 2)[:-2][int(args[-2]) if verb == b"HMSG" else 0:]
                    if not payload:
                        raise ConnectionError("no node serves")  # the server says so: status 503, no body
                    yield payload

    def ask(self, subject, text, wanted, within=60):
        """Returns the answer that has the field wanted. Raises TimeoutError when nothing is known."""
        body, deadline, last = text.encode(), time.monotonic() + within, None  # the same bytes at each try
        for attempt in itertools.count():
            try:
                for raw in self.answers(self.servers[attempt % len(self.servers)], subject, body):
                    answer = json.loads(raw)
                    if wanted not in answer and "error" not in answer:
                        continue  # a stream that captured the subject: no answer
                    if self.cluster and answer.get("cluster", self.cluster) != self.cluster:
                        raise RuntimeError(f"another cluster answers: {raw}")
                    self.cluster = answer.get("cluster", self.cluster)
                    if wanted in answer:
                        self.seen = max(self.seen, answer["seq"])
                        return answer
                    last = answer["error"]
                    if last["code"] not in AGAIN:
                        raise RuntimeError(f"{last['code']}: {last['message']}")
                    break
            except (OSError, ValueError) as e:  # not connected, no answer in time, not JSON
                last = e
            if time.monotonic() > deadline:
                raise TimeoutError(f"it may have happened; ask again with {text}: {last}")
            time.sleep(random.uniform(0.5, 1) * min(0.05 * 2**attempt, 2))

    def prepare(self, count):
        """Returns the body of a new reservation. Store it before the first send, and send that again after a crash."""
        if not self.seen:  # since 0 is none: then a key that the cluster has forgotten would be taken for a new one
            self.ask("alloc.list", '{"limit":1}', "sequences")
        return json.dumps({"count": count, "key": secrets.token_hex(16), "ids": "string", "since": self.seen})

    def reserve(self, sequence, body):
        """Returns the range [start, end) of a body that prepare has made, in this process or in one before."""
        answer = self.ask("alloc.reserve." + sequence, body, "start")
        return int(answer["start"]), int(answer["end"])


servers, sequence, count, *stored = sys.argv[1:]
allocnode = Allocnode(servers.split(","))
for body in stored + [None]:  # what was stored, then one more
    body = body or allocnode.prepare(int(count))
    print(f"{sequence}: sending {body}", flush=True)
    start, end = allocnode.reserve(sequence, body)
    print(f"{sequence}: {start} to {end - 1}")
