"""Drives a Pair of lustre-pair.py: requests come as lines of JSON on standard
input, answers go to standard output. At the end of input the guests end."""
import importlib.util, json, select, signal, socket, sys, threading

for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(s, signal.SIG_IGN)
script, folder, images = sys.argv[1:]
spec = importlib.util.spec_from_file_location('lustre_pair', script)
module = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(module)
lock = threading.Lock()


class Void(threading.Thread):
    """Takes the frames for a machine without power. Otherwise they fill the
    socket, and the other machine stands still in the middle of a send."""

    def __init__(self, sock):
        super().__init__(daemon=True)
        self.sock, self.over = sock, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            if select.select([self.sock], [], [], 0.05)[0]:
                try:
                    self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    pass

    def end(self):
        self.over.set()
        self.join()


voids = {}  # by role


def serve(pair, request):
    answer = {'id': request['id'], 'status': 0, 'output': '', 'error': ''}
    try:
        role, verb = request['role'], request['verb']
        if verb == 'run':
            answer['status'], answer['output'] = pair.run(role, request['command'], request['limit'])
        elif verb == 'start':
            if role in voids:
                voids.pop(role).end()
            pair.start(role, request['limit'])
        elif verb == 'kill':
            pair.kill(role)
            voids[role] = Void(pair.sock[role])
        else:
            raise ValueError('verb ' + verb)
    except Exception as e:
        answer['error'] = '%s: %s' % (type(e).__name__, e)
    with lock:
        print(json.dumps(answer), flush=True)


pair = module.Pair(folder, art=images)
try:
    for line in sys.stdin:
        threading.Thread(target=serve, args=(pair, json.loads(line)), daemon=True).start()
finally:
    pair.down()
