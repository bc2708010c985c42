package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/cascade"
	"cascadekv/gpu/direct"
	"cascadekv/gpu/gio"
	"cascadekv/gpu/nvme"
	"cascadekv/internal/block"
	"cascadekv/internal/handover"
	"cascadekv/tiers"
)

const ringSize = 64 << 10 // bytes of a block

// newRingRig makes a rig with n blocks of namespace ns, k0 and so on, that only its disks have.
func newRingRig(t *testing.T, n int, change ...func(*Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	o := nvme.Options{Dirs: []string{filepath.Join(dir, "disk")}, Bytes: 8 << 20, FileBytes: ringSize, Direct: true}
	fill := openDisks(t, o)
	var items []tiers.Item
	for i := range n {
		p := content("ns", fmt.Sprint("k", i), ringSize)
		items = append(items, tiers.Item{Info: block.Info{ID: block.Sum(block.Bits128, p), Size: ringSize, CRC: block.CRC(p)}, Data: p,
			Names: []block.Name{{Namespace: "ns", Key: fmt.Sprint("k", i), Seq: uint64(i + 1)}}})
	}
	if err := errors.Join(fill.Put(t.Context(), items...), fill.Close()); err != nil {
		t.Fatal(err)
	}
	disks := openDisks(t, o)
	return newRigWith(t, 16<<20, func(c *cascade.Options) { c.Memory = append(c.Memory, disks) }, func(s *Options) {
		s.Rings = func(bytes int64, write bool) (*direct.Ring, error) {
			return direct.Over(t.Context(), disks, write, direct.Options{Bytes: bytes})
		}
		for _, f := range change {
			f(s)
		}
	})
}

func openDisks(t *testing.T, o nvme.Options) *nvme.Tier {
	t.Helper()
	disks, err := nvme.Open(t.Context(), o)
	if err == nil {
		err = disks.WaitGrown(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return disks
}

// ringed is an engine with a ring.
type ringed struct {
	*engine
	n     string     // of the region
	queue *gio.Queue // the ring as the client maps it
	event int        // eventfd
}

// ring connects a client and gives it a ring; write: "WRITE" for one that writes.
func (r *rig) ring(bytes int, write ...string) *ringed {
	r.t.Helper()
	e := &ringed{engine: &engine{t: r.t}}
	e.conn, e.Client = r.connect()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		e.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = unix.Close(e.event) })
	command := append(append([]string{"CASCADE.REGION", "RING", strconv.Itoa(bytes)}, write...), "NOTIFY")
	rep, err := e.doWith([]int{fds[1], e.event}, command...)
	_ = unix.Close(fds[1])
	f := os.NewFile(uintptr(fds[0]), "ring")
	defer f.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		r.t.Fatal(err)
	}
	e.n = strconv.FormatInt(rep.Int, 10)
	if e.queue, err = gio.Attach(c.(*net.UnixConn), gio.H100); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = e.queue.Close() })
	e.mem = e.queue.Data()
	return e
}

// after submits a job that loads blocks from to before to, to the places of their numbers, once word 1 has the value of the job.
func (e *ringed) after(job, from, to int) {
	e.t.Helper()
	var pairs []uint64
	var keys []string
	for i := from; i < to; i++ {
		pairs, keys = append(pairs, uint64(i)*ringSize, ringSize), append(keys, fmt.Sprint("k", i))
	}
	e.engine.queue(job, append([]string{"CASCADE.LOAD", e.n, "ns", at(pairs...), "AFTER", "1", strconv.Itoa(job), "KEYS"}, keys...)...)
}

func (e *ringed) has(i int) bool {
	return bytes.Equal(e.mem[i*ringSize:][:ringSize], content("ns", fmt.Sprint("k", i), ringSize))
}

// TestRing: a client has blocks that only the disks have read into its memory, each job when its word is raised. Its memory serves as that
// of any region, too.
func TestRing(t *testing.T) {
	const n, each = 30, 5
	r := newRingRig(t, n)
	e := r.ring(2 * n * ringSize)
	for job := range n / each {
		e.after(job+1, job*each, (job+1)*each)
	}
	for job := range n / each {
		e.queue.Word(1).Store(uint32(job + 1))
		if got := e.told(1)[int64(job+1)]; got != strings.Repeat("1", each) {
			t.Errorf("job %d: %s", job+1, got)
		}
		for i := range n {
			if i < (job+1)*each && !e.has(i) {
				t.Errorf("after job %d block %d has other bytes", job+1, i)
			}
		}
		if !bytes.Equal(e.mem[(job+1)*each*ringSize:], make([]byte, len(e.mem)-(job+1)*each*ringSize)) {
			t.Errorf("after job %d the memory of later ones is written to", job+1)
		}
	}
	rung := make([]byte, 8)
	if _, err := unix.Read(e.event, rung); err != nil {
		t.Errorf("the eventfd: %v", err)
	}
	if blocks := r.store.Stats().Tiers[0].Usage.Blocks; blocks != 0 {
		t.Errorf("%d blocks went through memory", blocks)
	}
	copy(e.mem[n*ringSize:], "of the client")
	if got := e.move("CASCADE.STORE", e.n, "ns", at(n*ringSize, 100), "KEYS", "new"); got != "1" {
		t.Errorf("STORE: %s", got)
	}
	if got := e.move("CASCADE.LOAD", e.n, "ns", at((n+1)*ringSize, 100), "KEYS", "new"); got != "1" || !strings.HasPrefix(string(e.mem[(n+1)*ringSize:]), "of the client\x00") {
		t.Errorf("LOAD: %s", got)
	}
	if rep, err := e.Do("CASCADE.REGION", "DETACH", e.n); err != nil || rep.Text() != "OK" {
		t.Errorf("DETACH: %+v, %v", rep, err)
	}
	if _, err := e.queue.GetIOCB(1, nil); !errors.Is(err, gio.ErrGone) {
		t.Errorf("a ring whose region is detached: %v", err)
	}
}

// TestRingStores: blocks of a client's memory go to the disks when its word is raised, past memory.
func TestRingStores(t *testing.T) {
	const n = 4
	r := newRingRig(t, 1)
	e := r.ring(2*n*ringSize, "WRITE")
	var pairs []uint64
	var keys []string
	for i := range n {
		pairs, keys = append(pairs, uint64(i)*ringSize, ringSize), append(keys, fmt.Sprint("new", i))
		copy(e.mem[i*ringSize:], content("ns", keys[i], ringSize))
	}
	e.engine.queue(1, append([]string{"CASCADE.STORE", e.n, "ns", at(pairs...), "CHAIN", "AFTER", "2", "7", "KEYS"}, keys...)...)
	if r.store.Contains(t.Context(), "ns", keys[0]) {
		t.Error("it is stored before its word")
	}
	e.queue.Word(2).Store(7)
	if got := e.told(1)[1]; got != strings.Repeat("1", n) {
		t.Errorf("statuses %s", got)
	}
	if blocks := r.store.Stats().Tiers[0].Usage.Blocks; blocks != 0 {
		t.Errorf("%d blocks went through memory", blocks)
	}
	clear(e.mem)
	for i, key := range keys {
		if info, _ := r.store.Stat(t.Context(), "ns", key); len(info.Tiers) != 1 || info.Tiers[0] != "nvme" || int(info.Depth) != i {
			t.Errorf("%s: %+v", key, info)
		}
		rep, err := e.Do("CASCADE.GET", "NS", "ns", key)
		if err != nil || rep.Text() != string(content("ns", key, ringSize)) {
			t.Errorf("%s: %v, or other bytes", key, err)
		}
	}
}

func TestRingsThatCanNotBe(t *testing.T) {
	r := newRingRig(t, 1)
	e := r.ring(ringSize)
	for name, args := range map[string][]string{
		"no socket":       {"CASCADE.REGION", "RING", "4096"},
		"word 0":          {"CASCADE.LOAD", e.n, "ns", at(0, 1), "AFTER", "0", "1", "JOB", "1", "KEYS", "k0"},
		"word 33":         {"CASCADE.LOAD", e.n, "ns", at(0, 1), "AFTER", "33", "1", "JOB", "1", "KEYS", "k0"},
		"a value":         {"CASCADE.LOAD", e.n, "ns", at(0, 1), "AFTER", "1", "4294967296", "JOB", "1", "KEYS", "k0"},
		"no job":          {"CASCADE.LOAD", e.n, "ns", at(0, 1), "AFTER", "1", "1", "KEYS", "k0"},
		"a store, no job": {"CASCADE.STORE", e.n, "ns", at(0, 1), "AFTER", "1", "1", "KEYS", "k0"},
	} {
		if _, err := e.Do(args...); code(err) != "ERR" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.Do("CASCADE.REGION", "RING", "4096", "READ"); code(err) != "ERR" {
		t.Errorf("another word: %v", err)
	}
	for _, bytes := range []string{"x", "0", "-4096", "100", "1152921504606846976"} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.doWith(fds[:1], "CASCADE.REGION", "RING", bytes); code(err) != "ERR" {
			t.Errorf("%s bytes: %v", bytes, err)
		}
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
	}
	plain := newRig(t, 8<<20)
	p := plain.engine(4096)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
	if _, err := p.doWith(fds[:1], "CASCADE.REGION", "RING", "4096"); err == nil || !strings.Contains(err.Error(), "nvme.paths") {
		t.Errorf("a rank without disks: %v", err)
	}
}

// TestRingClientGone: what a client leaves that goes with jobs which wait for their words is given back, and its ring ends.
func TestRingClientGone(t *testing.T) {
	r := newRingRig(t, 10)
	e := r.ring(10 * ringSize)
	e.after(1, 0, 10)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		_, err := e.queue.GetIOCB(0, nil)
		if errors.Is(err, gio.ErrGone) && r.srv.jobs.Regions() == 0 && r.store.Stats().Views == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after a minute: %v, %d regions, %d views", err, r.srv.jobs.Regions(), r.store.Stats().Views)
		}
	}
}

// TestRingAtUpgrade: another program can not go on with a ring, so its connection ends, its jobs before it; others are handed over.
func TestRingAtUpgrade(t *testing.T) {
	r := newRingRig(t, 10)
	e, other := r.ring(10*ringSize), r.client("unix")
	if _, err := other.Do("CLIENT", "SETNAME", "other"); err != nil {
		t.Fatal(err)
	}
	e.after(1, 0, 10)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	refused := errors.New("refused")
	err := r.srv.HandOver(ctx, 0, func(st *handover.State) error {
		if len(st.Conns) != 1 || st.Conns[0].Name != "other" {
			t.Errorf("handed over: %+v", st.Conns)
		}
		return refused
	})
	if !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if _, err := e.Do("PING"); err == nil {
		t.Error("the connection of a ring is left")
	}
	if rep, err := other.Do("PING"); err != nil || rep.Text() != "PONG" {
		t.Errorf("the other one: %+v, %v", rep, err)
	}
	if r.srv.jobs.Regions() != 0 || r.store.Stats().Views != 0 {
		t.Errorf("%d regions and %d views are left", r.srv.jobs.Regions(), r.store.Stats().Views)
	}
	again := r.ring(10 * ringSize) // by the program that is there
	again.after(1, 0, 10)
	again.queue.Word(1).Store(1)
	if got := again.told(1)[1]; got != strings.Repeat("1", 10) {
		t.Errorf("a ring after it: %s", got)
	}
}

// TestRingAsksForAnUpgrade: whoever asks is handed over, and a ring can not be.
func TestRingAsksForAnUpgrade(t *testing.T) {
	r := newRingRig(t, 1, func(o *Options) { o.Upgrade = func(context.Context, Upgrade) error { return errors.New("begun") } })
	_, err := r.ring(ringSize).Do("CASCADE.UPGRADE")
	if err == nil || !strings.Contains(err.Error(), "ask on another") {
		t.Errorf("over a connection with a ring: %v", err)
	}
}
