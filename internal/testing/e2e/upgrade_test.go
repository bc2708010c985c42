package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/handover"
	"cascadekv/internal/resp"
	"cascadekv/internal/testing/testlog"
)

// upgrades is how often a rank is replaced under load.
const upgrades = 5

// upgrade replaces a rank and returns how the tool says it went.
func upgrade(t *testing.T, r *rank, more ...string) (u struct {
	PID         int   `json:"pid"`
	PausedUS    int64 `json:"paused_us"`
	Connections int   `json:"connections"`
}) {
	t.Helper()
	args := append([]string{"upgrade", "--socket", r.socket, "--json", "--wait", "60s"}, more...)
	status, out, said := finish(t, program("cascade"), args...)
	if status != 0 {
		t.Fatalf("upgrade: exit status %d: %s", status, said)
	}
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if u.PID != r.cmd.Process.Pid {
		t.Fatalf("process %d became %d", r.cmd.Process.Pid, u.PID)
	}
	return u
}

// clients are those that work while a rank is upgraded. Each stops at the first
// thing that goes wrong.
type clients struct {
	t    *testing.T
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup
	made []*turns
}

// turns counts what one client did.
type turns struct {
	name string
	mu   sync.Mutex
	n    int
}

func (x *turns) count() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.n
}

func newClients(t *testing.T) *clients { return &clients{t: t, stop: make(chan struct{})} }

// run calls turn again and again until the load ends, or the test fails: before
// its clean-up closes a connection or unmaps memory that it set up before run.
func (l *clients) run(name string, turn func(i int) error) {
	l.t.Cleanup(l.end)
	x := &turns{name: name}
	l.made = append(l.made, x)
	l.wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-l.stop:
				return
			default:
			}
			if err := turn(i); err != nil {
				l.t.Errorf("%s, turn %d: %v", name, i, err)
				return
			}
			x.mu.Lock()
			x.n++
			x.mu.Unlock()
		}
	})
}

// goesOn waits until each client has made some turns more.
func (l *clients) goesOn() {
	l.t.Helper()
	for _, x := range l.made {
		from := x.count()
		until(l.t, "turn of "+x.name, func() bool { return l.t.Failed() || x.count() >= from+2 })
	}
}

// end returns when no client works any more. It may be called again.
func (l *clients) end() {
	l.once.Do(func() { close(l.stop) })
	l.wg.Wait()
}

// bytesOf are n bytes that only a name has.
func bytesOf(name string, n int) []byte {
	seed := [32]byte{}
	copy(seed[:], name)
	p := make([]byte, n)
	rand.NewChaCha8(seed).Read(p)
	return p
}

// setAndGet stores and reads values, one name after another. A value may be
// gone, never wrong.
func setAndGet(c *resp.Client, name string, most int) func(i int) error {
	buf := make([]byte, most)
	return func(i int) error {
		key := fmt.Sprintf("%s-%d", name, i%50)
		want := bytesOf(key, 1+i%50*most/50)
		if err := c.Set(key, want); err != nil {
			return fmt.Errorf("SET: %w", err)
		}
		n, err := c.Get(key, buf)
		if err == resp.ErrNull {
			return nil
		}
		if err != nil || !bytes.Equal(buf[:n], want) {
			return fmt.Errorf("GET: %d bytes of %d, %w", n, len(want), err)
		}
		return nil
	}
}

// pipelined sends many commands at once.
func pipelined(c *resp.Client, name string) func(i int) error {
	return func(i int) error {
		const depth = 40
		for k := range depth {
			c.Send("SET", fmt.Sprintf("%s-%d", name, k), fmt.Sprintf("%d of turn %d", k, i))
			c.Send("GET", fmt.Sprintf("%s-%d", name, k))
		}
		if err := c.Flush(); err != nil {
			return err
		}
		for k := range depth {
			if err := c.ReceiveOK(); err != nil {
				return err
			}
			r, err := c.Receive()
			if err != nil || !r.Null() && r.Text() != fmt.Sprintf("%d of turn %d", k, i) {
				return fmt.Errorf("answer %d is %q, %w", k, r.Text(), err)
			}
		}
		return nil
	}
}

// fixedLength is a client that counts bytes instead of reading answers.
func fixedLength(conn net.Conn) func(i int) error {
	ask := func(n int, words ...string) (string, error) {
		line := fmt.Sprintf("*%d\r\n", len(words))
		for _, w := range words {
			line += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return "", err
		}
		if _, err := conn.Write([]byte(line)); err != nil {
			return "", err
		}
		p := make([]byte, n)
		for at := 0; at < n; {
			m, err := conn.Read(p[at:])
			if err != nil {
				return string(p[:at]), err
			}
			at += m
		}
		return string(p), nil
	}
	const size = 5000
	return func(i int) error {
		key := fmt.Sprintf("model@8@0@%d", i%20)
		value := string(bytesOf(key, size))
		if got, err := ask(5, "SET", key, value); err != nil || got != "+OK\r\n" {
			return fmt.Errorf("SET: %q, %w", got, err)
		}
		if got, err := ask(4, "EXISTS", key); err != nil || got == ":0\r\n" { // given up meanwhile: the tier is full
			return err
		} else if got != ":1\r\n" {
			return fmt.Errorf("EXISTS: %q", got)
		}
		if got, err := ask(7+size+2, "GET", key); err != nil || got != "$5000\r\n"+value+"\r\n" {
			return fmt.Errorf("GET: %.20q…, %w", got, err)
		}
		if got, err := ask(7, "GET", "model@8@0@absent"); err != nil || got[0] != '-' || got[5:] != "\r\n" {
			return fmt.Errorf("GET of what is absent: %q, %w", got, err)
		}
		return nil
	}
}

// jobs has blocks of a region stored and loaded as jobs.
func jobs(g *regionClient) func(i int) error {
	const blocks, size = 16, 64 << 10
	return func(i int) error {
		keys := make([]string, blocks)
		for k := range keys {
			keys[k] = fmt.Sprintf("job-%d-%d", i%8, k)
			copy(g.mem[k*size:(k+1)*size], bytesOf(keys[k], size))
		}
		if status, err := g.job("STORE", 0, size, keys); err != nil || bytes.Count(status, []byte{1}) != blocks {
			return fmt.Errorf("STORE: %v, %w", status, err)
		}
		clear(g.mem[blocks*size : 2*blocks*size])
		status, err := g.job("LOAD", blocks*size, size, keys)
		if err != nil || len(status) != blocks {
			return fmt.Errorf("LOAD: %v, %w", status, err)
		}
		for k, st := range status {
			if at := (blocks + k) * size; st == 1 && !bytes.Equal(g.mem[at:at+size], bytesOf(keys[k], size)) {
				return fmt.Errorf("LOAD: block %d is wrong", k)
			}
		}
		return nil
	}
}

// follow waits for events, and counts how often some were forgotten.
func follow(c *resp.Client, lost *atomic.Int64) func(i int) error {
	next := "0"
	return func(int) error {
		r, err := c.Do("CASCADE.EVENTS", next, "WAIT", "300", "MAX", "65536")
		if err != nil || len(r.Elems) != 3 {
			return fmt.Errorf("EVENTS: %v, %w", r, err)
		}
		if r.Elems[1].Int > 0 {
			lost.Add(1)
		}
		next = r.Elems[0].Text()
		return nil
	}
}

// TestUpgradeUnderLoad replaces a rank again and again while clients of all
// kinds work, and some hold views, stages and pins.
func TestUpgradeUnderLoad(t *testing.T) {
	for name, lustre := range map[string]bool{"memory": false, "memory and lustre": true} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "96MiB")
			if lustre {
				p = p.withLustre()
			}
			upgradeUnderLoad(t, start(t, p, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--log-level", "debug"))
		})
	}
}

func upgradeUnderLoad(t *testing.T, r *rank) {
	tcp, http := listening(t, r, "tcp"), listening(t, r, "http")
	over := func(network, address string) *resp.Client {
		c, err := resp.Dial(network, address, patience)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	idle := r.dial(t)
	if _, err := idle.Do("CLIENT", "SETNAME", "idle"); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Do("SELECT", "3"); err != nil {
		t.Fatal(err)
	}
	id, err := idle.Do("CLIENT", "ID")
	if err != nil {
		t.Fatal(err)
	}
	h := hold(t, r)
	own := h.holdByItself(r)
	raw, err := net.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })

	l := newClients(t)
	l.run("unix", setAndGet(r.dial(t), "unix", 200<<10))
	l.run("large", setAndGet(r.dial(t), "large", 3<<20)) // leaves no room to those that are not held
	l.run("tcp", setAndGet(over("tcp", tcp), "tcp", 60<<10))
	l.run("pipeline", pipelined(r.dial(t), "pipeline"))
	l.run("fixed", fixedLength(raw))
	l.run("jobs", jobs(attachRegion(t, r, 4<<20)))
	var lost atomic.Int64
	l.run("events", follow(r.dial(t), &lost))
	l.run("http", func(int) error { return healthy(http) })
	var paused int64
	told := holdings(t, r)
	for i := range upgrades {
		l.goesOn()
		u := upgrade(t, r)
		paused = max(paused, u.PausedUS)
		h.check()
		if now := holdings(t, r); !maps.Equal(now, told) {
			t.Errorf("%v are told to be held, %v before", now, told)
		}
		own.upgraded(r, i)
		told = holdings(t, r)
		if t.Failed() {
			break
		}
	}
	l.goesOn()
	l.end()
	if n := lost.Load(); n != upgrades && !t.Failed() {
		t.Errorf("who follows events learned %d times that it missed some, want %d", n, upgrades)
	}
	t.Logf("clients waited for %d ms at most", paused/1000)
	for _, x := range l.made {
		t.Logf("%s: %d turns", x.name, x.count())
	}
	if again, err := idle.Do("CLIENT", "ID"); err != nil || again.Int != id.Int {
		t.Errorf("connection %d is %d, %v", id.Int, again.Int, err)
	}
	if name, err := idle.Do("CLIENT", "GETNAME"); err != nil || name.Text() != "idle" {
		t.Errorf("its name is %q, %v", name.Text(), err)
	}
	if err := idle.Set("in-three", []byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := r.dial(t).Do("DBSIZE"); err != nil || n.Int == 0 {
		t.Errorf("DBSIZE of database 0: %v, %v", n, err)
	}
	if n, err := idle.Do("DBSIZE"); err != nil || n.Int != 1 {
		t.Errorf("DBSIZE of database 3: %v, %v", n, err)
	}
	own.check()
	own.giveBack()
	h.giveBack()
	until(t, "end of all that was held", func() bool { return r.stats(t).Views == 0 && maps.Equal(holdings(t, r), nothing) }) // blocks that get their id are viewed, too
	if s := r.stats(t); s.Corrupt != 0 {
		t.Errorf("%d blocks are corrupt", s.Corrupt)
	}
}

// TestUpgradeWithJobs replaces a rank that has hundreds of jobs to do: those that
// are not finished go on.
func TestUpgradeWithJobs(t *testing.T) {
	const each, size = 64, 1 << 20
	r := start(t, newPlace(t, "256MiB"))
	g := attachRegion(t, r, 2*each*size)
	copy(g.mem, bytesOf("region", each*size))
	number := 0
	submit := func(verb string, offset int) {
		for i := range each {
			a, err := g.c.Do("CASCADE."+verb, g.region, "jobs", string(extent(offset+i*size, size)), "JOB", fmt.Sprint(number), "KEYS", fmt.Sprint(i))
			if err != nil || a.Text() != "QUEUED" {
				t.Fatalf("%s: %q, %v", verb, a.Text(), err)
			}
			number++
		}
	}
	collect := func() {
		for told := 0; told < each; {
			done, err := g.c.Do("CASCADE.DONE", "1000")
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range done.Elems {
				if string(j.Elems[1].Str) != "\x01" {
					t.Errorf("job %d: status %q", j.Elems[0].Int, j.Elems[1].Str)
				}
				told++
			}
		}
	}
	submit("STORE", 0)
	upgrade(t, r)
	collect()
	for range upgrades {
		clear(g.mem[each*size:])
		submit("LOAD", each*size)
		upgrade(t, r)
		collect()
		if !bytes.Equal(g.mem[:each*size], g.mem[each*size:]) {
			t.Fatal("what was loaded is not what was stored")
		}
	}
}

// TestUpgradeOfRanks replaces the ranks of a job one after another, the one that
// the others first joined among them: each rank goes on to find what all have.
func TestUpgradeOfRanks(t *testing.T) {
	j := startJob(t, 3, "32MiB", true)
	all := j.clients()
	m := marks{"of-all", 12}
	m.put(t, all[1])
	m.everywhere(t, all...)
	if _, err := all[1].Do("DEL", m.key(0)); err != nil {
		t.Fatal(err)
	}
	for i, r := range j.ranks {
		upgrade(t, r)
		j.agree(3)
		after := marks{fmt.Sprintf("after-%d", i), 6}
		after.put(t, all[i])
		after.everywhere(t, all...)
		for k, c := range all {
			becomesSoon(t, k, c, m.key(0), "")
			for n := 1; n < m.n; n++ {
				becomesSoon(t, k, c, m.key(n), string(m.value(n)))
			}
		}
	}
}

// TestUpgradeRefused: whatever is wrong with the program or the clients, the
// rank goes on as it was.
func TestUpgradeRefused(t *testing.T) {
	p := newPlace(t, "16MiB")
	listed := []string{p.dir}
	for _, name := range []string{"none", "plain", "open", "other", "fails", "newer", "moved", "gone"} {
		listed = append(listed, filepath.Join(p.dir, name))
	}
	r := start(t, p, "--upgrade-binaries", strings.Join(listed, ","))
	c := r.dial(t)
	if err := c.Set("kept", []byte("value")); err != nil {
		t.Fatal(err)
	}
	script := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(p.dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	able := fmt.Sprintf("#!/bin/sh\necho '{\"handover\": %d", handover.Version)
	// A client in the middle of a value.
	slow, err := net.Dial("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	half := func() {
		if _, err := slow.Write([]byte("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$10\r\nhalf")); err != nil {
			t.Fatal(err)
		}
	}
	rest := func() {
		if _, err := slow.Write([]byte("-whole\r\n")); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 5)
		if _, err := slow.Read(answer); err != nil || string(answer) != "+OK\r\n" {
			t.Errorf("the slow client is answered %q, %v", answer, err)
		}
	}
	for name, try := range map[string]struct {
		args          []string
		before, after func()
		says          []string
	}{
		"no program":      {args: []string{"--binary", filepath.Join(p.dir, "none")}, says: []string{"no such file", "--binary"}},
		"not listed":      {args: []string{"--binary", "/bin/true"}, says: []string{"/bin/true", "upgrade_binaries", "SIGHUP"}},
		"a folder":        {args: []string{"--binary", p.dir}, says: []string{"is no file"}},
		"not executable":  {args: []string{"--binary", script("plain", "", 0o600)}, says: []string{"chmod +x"}},
		"open to all":     {args: []string{"--binary", script("open", "", 0o777)}, says: []string{"chmod o-w"}},
		"another program": {args: []string{"--binary", script("other", "#!/bin/sh\necho hello\n", 0o700)}, says: []string{"hello", "no cascaded"}},
		"it fails":        {args: []string{"--binary", script("fails", "#!/bin/sh\necho broken >&2; exit 3\n", 0o700)}, says: []string{"exit status 3", "broken"}},
		"another version": {args: []string{"--binary", script("newer", "#!/bin/sh\necho '{\"handover\": 99, \"version\": \"v9\"}'\n", 0o700)}, says: []string{"v9", "version 99"}},
		"another place": {args: []string{"--binary", script("moved", able+", \"config\": {\"socket\": \"/elsewhere\"}}'\n", 0o700)},
			says: []string{"/elsewhere", "undo that change"}},
		"cannot be run": {args: []string{"--binary", script("gone", able+"}'; rm \"$0\"\n", 0o700)}, says: []string{"execve"}},
		"a slow client": {args: []string{"--wait", "300ms"}, before: half, after: rest, says: []string{"in the middle of a command", fmt.Sprintf("process %d", os.Getpid())}},
	} {
		t.Run(name, func(t *testing.T) {
			if try.before != nil {
				try.before()
				time.Sleep(50 * time.Millisecond) // for the rank to begin with it
			}
			status, out, said := finish(t, program("cascade"), append([]string{"upgrade", "--socket", r.socket}, try.args...)...)
			if status != 1 || out != "" {
				t.Errorf("exit status %d: %s", status, out)
			}
			wantWords(t, said, append(try.says, "goes on as it was")...)
			if try.after != nil {
				try.after()
			}
			wantValue(t, c, "kept", "value")
			wantValue(t, r.dial(t), "kept", "value") // new connections are taken, too
		})
	}
	upgrade(t, r) // nothing of it is left in the way
	wantValue(t, c, "kept", "value")
}

// TestHandoverOfNoUse: a rank that is handed nonsense says so and starts all the
// same.
func TestHandoverOfNoUse(t *testing.T) {
	p := newPlace(t, "16MiB")
	r := startWithin(t, []string{"sh", "-c", `exec "$0" --handover=3 "$@" 3</dev/null`}, p)
	if err := r.dial(t).Set("k", []byte("v")); err != nil {
		t.Error(err)
	}
	r.untilSays(t, "of no use", "clients are disconnected")
}

// TestUpgradeWhileClientDies ends a client that holds views, stages and a region
// while the rank is being replaced.
func TestUpgradeWhileClientDies(t *testing.T) {
	r := start(t, newPlace(t, "32MiB"))
	h := hold(t, r)
	slow, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := slow.Write([]byte("*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$10\r\nhalf")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	cmd := exec.Command(program("cascade"), "upgrade", "--socket", r.socket, "--wait", "60s")
	cmd.Env = cleanEnv()
	out := &testlog.Log{}
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // the holder rests by now, if the machine is not very slow
	h.c.Close()
	if _, err := slow.Write([]byte("-whole\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	until(t, "end of what a dead client held", func() bool { return r.stats(t).Views == 0 && maps.Equal(holdings(t, r), nothing) })
}
