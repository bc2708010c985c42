package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"cascadekv/internal/resp"
)

// hasArena reports whether the arena file is there.
func (p place) hasArena() bool {
	_, err := os.Lstat(p.arena)
	return !errors.Is(err, os.ErrNotExist)
}

// wantNoArena checks that the arena is gone, as after a clean end, so that what the
// next rank has is from segments.
func (p place) wantNoArena(t *testing.T) {
	t.Helper()
	if p.hasArena() {
		t.Fatalf("%s is there after a clean end", p.arena)
	}
}

// endsWell ends a rank with SIGTERM.
func (r *rank) endsWell(t *testing.T) {
	t.Helper()
	r.signal(t, syscall.SIGTERM)
	wantStatus(t, r.status(t), 0, r.stderr)
}

// TestCleanEndsLeaveNoArena: four starts and clean ends, each on another socket
// and so with another arena, leave nothing in shared memory.
func TestCleanEndsLeaveNoArena(t *testing.T) {
	p := newPlace(t, "64MiB").withLustre()
	for i := range 4 {
		next := p
		next.socket += strconv.Itoa(i)
		next.arena += strconv.Itoa(i)
		t.Cleanup(func() { os.Remove(next.arena) })
		r := start(t, next)
		if err := r.dial(t).Set(fmt.Sprint("k", i), []byte("v")); err != nil {
			t.Fatal(err)
		}
		r.endsWell(t)
		r.untilSays(t, "arena file removed", next.arena)
	}
	if left, err := filepath.Glob(p.arena + "*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v is left", left, err)
	}
	c := start(t, p).dial(t)
	for i := range 4 {
		wantValue(t, c, fmt.Sprint("k", i), "v")
	}
}

// TestArenaStays lists the ends after which the arena file stays, and what the log
// says of it. The next rank finds what it has.
func TestArenaStays(t *testing.T) {
	for name, c := range map[string]struct {
		place func(p place) place
		args  []string
		words []string
		code  int
	}{
		"no lustre":       {func(p place) place { return p }, nil, []string{"without lustre.dir"}, 0},
		"shm.keep":        {place.withLustre, []string{"--shm-keep"}, []string{"shm.keep"}, 0},
		"drain cut short": {place.withLustre, []string{"--deadline-drain", "0s"}, []string{"nowhere else", "dirty_blocks=1", "dirty_bytes=4"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.place(newPlace(t, "16MiB"))
			r := start(t, p, c.args...)
			if err := r.dial(t).Set("k", []byte("word")); err != nil {
				t.Fatal(err)
			}
			r.signal(t, syscall.SIGTERM)
			wantStatus(t, r.status(t), c.code, r.stderr)
			r.untilSays(t, append(c.words, "arena file stays", p.arena, "cascade arena rm")...)
			if !p.hasArena() {
				t.Fatal("the arena is gone")
			}
			again := start(t, p)
			again.untilSays(t, "msg=recovered")
			wantValue(t, again.dial(t), "k", "word")
		})
	}
}

// TestEmptyArenaGoes: without lustre.dir too.
func TestEmptyArenaGoes(t *testing.T) {
	p := newPlace(t, "16MiB")
	start(t, p).endsWell(t)
	if p.hasArena() {
		t.Error("the arena of a rank that held nothing is left")
	}
}

// TestLateFailureLeavesNoArena: a start that fails after the arena was made takes
// it away again, and leaves one that it found.
func TestLateFailureLeavesNoArena(t *testing.T) {
	busy := start(t, newPlace(t, "16MiB"), "--listen", "127.0.0.1:0")
	address := busy.tcp(t)
	for name, args := range map[string][]string{
		"port taken":             {"--listen", address},
		"admin port taken":       {"--admin-listen", address},
		"socket of another rank": {"--socket", busy.socket},
		"lustre.dir is a file":   {"--lustre-dir", "/etc/hostname"},
		"no peers' address":      {"--peers-fabric", "tcp", "--peers-listen", "192.0.2.1:1", "--peers-secret-file", secretIn(t)},
		"no memory for host":     {"--host-bytes", "100000TiB"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "16MiB")
			r := launch(t, p, args...)
			wantStatus(t, r.status(t), 1, r.stderr)
			if p.hasArena() {
				t.Errorf("the arena is left; the rank said %s", tailOf(r.stderr.String()))
			}
			first := start(t, p)
			if err := first.dial(t).Set("k", []byte("v")); err != nil {
				t.Fatal(err)
			}
			first.kill()
			r = launch(t, p, args...)
			wantStatus(t, r.status(t), 1, r.stderr)
			wantValue(t, start(t, p).dial(t), "k", "v")
		})
	}
}

// tcp is the address of TCP clients.
func (r *rank) tcp(t *testing.T) (address string) {
	t.Helper()
	until(t, "address of TCP", func() bool {
		_, rest, ok := strings.Cut(r.stderr.String(), "network=tcp address=")
		address, _, _ = strings.Cut(rest, "\n")
		return ok && strings.Contains(rest, "\n")
	})
	return address
}

func secretIn(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("a secret of the job, long enough\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestAnotherSizeStarts starts ranks of other sizes and widths on what earlier ones
// left, after a kill and after a clean end: none refuses, and what was acknowledged
// is there.
func TestAnotherSizeStarts(t *testing.T) {
	for name, c := range map[string]struct {
		place func(p place) place
		size  string
		args  []string
		full  bool // more than fits the smaller arena
	}{
		"larger":                   {place.withLustre, "64MiB", nil, false},
		"smaller":                  {place.withLustre, "16MiB", nil, false},
		"smaller than what it has": {place.withLustre, "16MiB", nil, true},
		"larger, no lustre":        {func(p place) place { return p }, "64MiB", nil, true},
		"smaller, no lustre":       {func(p place) place { return p }, "16MiB", nil, true},
	} {
		for _, end := range []string{"kill", "clean end"} {
			t.Run(name+" after a "+end, func(t *testing.T) {
				p := c.place(newPlace(t, "32MiB"))
				r := start(t, p)
				client := r.dial(t)
				keys := 8
				if c.full {
					keys = 24
				}
				for i := range keys {
					if err := client.Set(fmt.Sprint("k", i), bytesOf(fmt.Sprint(i), 1<<20)); err != nil {
						t.Fatal(err)
					}
				}
				if end == "kill" {
					r.kill()
				} else {
					r.endsWell(t)
				}
				p.shm = c.size
				again := start(t, p, c.args...)
				client = again.dial(t)
				buf := make([]byte, 1<<20)
				for i := range keys {
					if n, err := client.Get(fmt.Sprint("k", i), buf); err != nil || string(buf[:n]) != string(bytesOf(fmt.Sprint(i), 1<<20)) {
						t.Errorf("k%d: %d bytes, %v", i, n, err)
					}
				}
				if s := again.stats(t); s.Lost+s.Corrupt > 0 {
					t.Errorf("%d lost, %d corrupt", s.Lost, s.Corrupt)
				}
			})
		}
	}
}

// TestOtherLayoutStarts: a rank of another id_bits or lustre.segment_bytes starts on
// an arena and a lustre directory that an earlier one filled, and serves what they
// have.
func TestOtherLayoutStarts(t *testing.T) {
	for name, args := range map[string][]string{
		"id_bits":       {"--id-bits", "256"},
		"smaller files": {"--lustre-segment-bytes", "1MiB"},
	} {
		for _, end := range []string{"kill", "clean end"} {
			t.Run(name+" after a "+end, func(t *testing.T) {
				p := newPlace(t, "16MiB").withLustre()
				r := start(t, p)
				c := r.dial(t)
				if err := c.Set("cold", []byte("v")); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Do("CASCADE.DRAIN"); err != nil {
					t.Fatal(err)
				}
				if err := c.Set("dirty", []byte("w")); err != nil {
					t.Fatal(err)
				}
				if end == "kill" {
					r.kill()
				} else {
					r.endsWell(t)
				}
				again := start(t, p, args...)
				c = again.dial(t)
				wantValue(t, c, "cold", "v")
				wantValue(t, c, "dirty", "w")
				if err := c.Set("new", []byte("x")); err != nil {
					t.Error(err)
				}
				again.endsWell(t)
				wantValue(t, start(t, p).dial(t), "new", "x")
			})
		}
	}
}

// TestDamagedArenaStarts: a rank starts whatever the arena's first page has become.
func TestDamagedArenaStarts(t *testing.T) {
	p := newPlace(t, "16MiB").withLustre()
	r := start(t, p)
	if err := r.dial(t).Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	r.kill()
	f, err := os.OpenFile(p.arena, os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(bytesOf("damage", 4096), 0)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	again := start(t, p)
	again.untilSays(t, "arena file was damaged", p.arena)
	if err := again.dial(t).Set("k", []byte("v")); err != nil {
		t.Error(err)
	}
}

// listed asks the tool for the arenas in /dev/shm that a test has.
func listed(t *testing.T, p place) (states []string) {
	t.Helper()
	status, out, said := finish(t, program("cascade"), "arena", "list", "--json")
	var found struct {
		Arenas []struct{ Path, State string }
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil || status != 0 {
		t.Fatalf("%v, %d: %s", err, status, said)
	}
	for _, a := range found.Arenas {
		if strings.HasPrefix(a.Path, p.arena) {
			states = append(states, a.State)
		}
	}
	return states
}

// TestArenaVerbs lists and removes arenas: never that of a rank that runs.
func TestArenaVerbs(t *testing.T) {
	p := newPlace(t, "16MiB")
	r := start(t, p)
	if err := r.dial(t).Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	if s := listed(t, p); !slices.Equal(s, []string{"live"}) {
		t.Errorf("listed as %v", s)
	}
	status, _, said := finish(t, program("cascade"), "arena", "rm", p.arena)
	if status != 1 || !strings.Contains(said, p.arena) || !p.hasArena() {
		t.Errorf("rm of a live one: status %d, %s", status, said)
	}
	wantValue(t, r.dial(t), "k", "v")
	r.kill()
	if s := listed(t, p); !slices.Equal(s, []string{"stale"}) {
		t.Errorf("listed as %v", s)
	}
	if _, out, _ := finish(t, program("cascade"), "arena", "list"); !strings.Contains(out, p.arena) || !strings.Contains(out, "stale") {
		t.Errorf("listed as\n%s", out)
	}
	other := p
	other.arena, other.socket = p.arena+"2", p.socket+"2"
	t.Cleanup(func() { os.Remove(other.arena) })
	start(t, other).untilSays(t, "arena files that no rank uses")
	if status, out, said := finish(t, program("cascade"), "arena", "rm", p.arena); status != 0 || p.hasArena() {
		t.Errorf("rm: status %d, %s%s", status, out, said)
	}
	text := filepath.Join(p.dir, "text")
	if err := os.WriteFile(text, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, p.arena, p.dir} {
		if status, _, said := finish(t, program("cascade"), "arena", "rm", path); status != 1 {
			t.Errorf("rm %s: status %d, %s", path, status, said)
		}
	}
	if _, err := os.Stat(text); err != nil {
		t.Error(err)
	}
}

// TestRemoveStaleArenas: --stale takes all that no rank uses, in a directory.
func TestRemoveStaleArenas(t *testing.T) {
	p := newPlace(t, "16MiB")
	dir := filepath.Join(p.dir, "shm")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var ranks []*rank
	for i := range 3 {
		next := p
		next.arena, next.socket = filepath.Join(dir, fmt.Sprint(i, ".arena")), fmt.Sprint(p.socket, i)
		r := start(t, next)
		if err := r.dial(t).Set("k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		ranks = append(ranks, r)
	}
	ranks[0].kill()
	ranks[2].kill()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, out, said := finish(t, program("cascade"), "arena", "rm", "--stale", dir)
	if status != 0 || strings.Count(out, "removed ") != 2 {
		t.Errorf("status %d, %s%s", status, out, said)
	}
	left, err := filepath.Glob(dir + "/*")
	if err != nil || !slices.Equal(left, []string{dir + "/1.arena", dir + "/text"}) {
		t.Errorf("%v, %v is left", left, err)
	}
}

// TestArenaTruncatedWhileServing cuts the arena file off while clients read and
// write: no byte is wrong, and the rank, the same process, serves again soon.
func TestArenaTruncatedWhileServing(t *testing.T) {
	for name, cut := range map[string]func(path string) error{
		"to nothing":            func(path string) error { return os.Truncate(path, 0) },
		"to half":               func(path string) error { return os.Truncate(path, 32<<20) },
		"and extended again":    func(path string) error { return errors.Join(os.Truncate(path, 0), os.Truncate(path, 64<<20)) },
		"while nobody is there": nil,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, "64MiB").withLustre()
			r := start(t, p)
			c := r.dial(t)
			const keys, size = 30, 1 << 20
			for i := range keys {
				if err := c.Set(fmt.Sprint("k", i), bytesOf(fmt.Sprint("k", i), size)); err != nil {
					t.Fatal(err)
				}
			}
			stop := make(chan struct{})
			var clients sync.WaitGroup
			for n := range 4 { // that read and write all the time, on one connection after another
				clients.Go(func() {
					for i := n; cut != nil; i += 3 {
						select {
						case <-stop:
							return
						default:
						}
						if err := readAndWrite(p.socket, i%keys, size); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			now := cut
			if now == nil {
				now = func(path string) error { return os.Truncate(path, 4096) }
			}
			if err := now(p.arena); err != nil {
				t.Fatal(err)
			}
			until(t, "second start", func() bool {
				select {
				case <-r.ended:
					t.Fatalf("the rank ended: %v", r.cmd.ProcessState)
				default:
				}
				return strings.Count(r.stderr.String(), "cascaded starts") == 2 && strings.Count(r.stderr.String(), "network=unix") == 2
			})
			close(stop)
			clients.Wait()
			r.untilSays(t, "arena file was truncated", p.arena)
			c = r.dial(t)
			if err := c.Set("after", []byte("v")); err != nil {
				t.Error(err)
			}
			wantValue(t, c, "after", "v")
			r.endsWell(t)
		})
	}
}

// readAndWrite puts a value and reads another one, which may be missing but not
// wrong. The rank may go away meanwhile.
func readAndWrite(socket string, i, size int) error {
	c, err := resp.Dial("unix", socket, patience)
	if err != nil {
		return nil
	}
	defer c.Close()
	key := fmt.Sprint("k", i)
	if c.Set(key, bytesOf(key, size)) != nil {
		return nil
	}
	if i%7 == 0 {
		_, _ = c.Do("CASCADE.DRAIN") // it reads what is dirty
	}
	buf := make([]byte, size)
	if n, err := c.Get(key, buf); err == nil && string(buf[:n]) != string(bytesOf(key, size)) {
		return fmt.Errorf("%s has wrong bytes", key)
	}
	return nil
}

// TestArenaUnlinkedWhileServing removes the arena file of a rank and upgrades it:
// all names stay, once it is said what that means, and a clean end saves all.
func TestArenaUnlinkedWhileServing(t *testing.T) {
	p := newPlace(t, "32MiB").withLustre()
	r := start(t, p)
	c := r.dial(t)
	for i := range 50 {
		if err := c.Set(fmt.Sprint("k", i), []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(p.arena); err != nil {
		t.Fatal(err)
	}
	r.untilSays(t, "arena file has lost its name", p.arena)
	for range 2 {
		upgrade(t, r)
		for i := range 50 {
			wantValue(t, c, fmt.Sprint("k", i), "v")
		}
	}
	if n := r.stats(t).Names; n != 50 {
		t.Errorf("%d names", n)
	}
	if p.hasArena() {
		t.Error("an arena that nobody has is at the path")
	}
	r.endsWell(t)
	if s := start(t, p).stats(t); s.Recovered.Names+s.Spilled.Names != 50 {
		t.Errorf("recovered %+v, spilled %+v", s.Recovered, s.Spilled)
	}
}

// TestSocketRemovedWhileServing removes the socket and its directory: the rank
// listens there again, and meanwhile doctor does not say that one is to be started.
func TestSocketRemovedWhileServing(t *testing.T) {
	p := newPlace(t, "16MiB")
	p.socket = filepath.Join(p.dir, "sockets", "s")
	r := start(t, p)
	c := r.dial(t)
	if err := c.Set("k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	r.signal(t, syscall.SIGSTOP) // so that it is not there again at once
	if err := os.RemoveAll(filepath.Dir(p.socket)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program("cascade"), "doctor", "--socket", p.socket)
	cmd.Env = append(cleanEnv(), "CASCADE_SHM_PATH="+p.arena)
	out, _ := cmd.CombinedOutput() // it fails: none answers
	r.signal(t, syscall.SIGCONT)
	wantWords(t, string(out), "none answers at "+p.socket, "one runs", p.arena)
	if strings.Contains(string(out), "start one") {
		t.Errorf("doctor says to start one:\n%s", out)
	}
	r.untilSays(t, "listening there again", p.socket)
	wantValue(t, r.dial(t), "k", "v")
	upgrade(t, r)
	if err := os.Remove(p.socket); err != nil {
		t.Fatal(err)
	}
	until(t, "socket after an upgrade", func() bool { return strings.Count(r.stderr.String(), "listening there again") == 2 })
	wantValue(t, r.dial(t), "k", "v")
	wantValue(t, c, "k", "v")
	r.endsWell(t)
	if _, err := os.Lstat(p.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
}
