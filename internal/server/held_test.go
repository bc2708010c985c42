package server

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admin"
	"cascadekv/internal/block"
	"cascadekv/internal/resp"
)

// writable maps the arena for writing, from where INFO says it is.
func (e *viewer) writable() []byte {
	e.t.Helper()
	var path string
	for line := range strings.Lines(string(e.do("INFO", "cascade").Str)) {
		if p, ok := strings.CutPrefix(line, "cascade_arena:"); ok {
			path = strings.TrimSpace(p)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	defer f.Close()
	p, err := unix.Mmap(int(f.Fd()), 0, len(e.arena), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = unix.Munmap(p) })
	return p
}

// staged is a stage as a client has it; number 0 is no room.
type staged struct{ number, offset int64 }

func (e *viewer) stages(sizes ...int) []staged {
	e.t.Helper()
	args := []string{"CASCADE.STAGE"}
	for _, n := range sizes {
		args = append(args, strconv.Itoa(n))
	}
	rep := e.do(args...)
	if len(rep.Elems) != len(sizes) {
		e.t.Fatalf("STAGE of %d has %d answers", len(sizes), len(rep.Elems))
	}
	got := make([]staged, len(sizes))
	for i, s := range rep.Elems {
		if !s.Null() {
			got[i] = staged{s.Elems[0].Int, s.Elems[1].Int}
		}
	}
	return got
}

// commit commits a stage and returns the code of the error, "" for none.
func (e *viewer) commit(s staged, rest ...string) string {
	e.t.Helper()
	return e.code(append([]string{"CASCADE.COMMIT", fmt.Sprint(s.number)}, rest...)...)
}

func (e *viewer) code(args ...string) string {
	e.t.Helper()
	_, err := e.Do(args...)
	var se *resp.ServerError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &se):
		return se.Code()
	}
	e.t.Fatalf("%.60q: %v", args, err)
	return ""
}

func TestStagedBlocksAreStored(t *testing.T) {
	r := newRig(t, 32<<20)
	e, other := r.viewer(), r.viewer()
	arena := e.writable()
	sizes := []int{0, 1, 4096, 100_000, 2 << 20}
	for i, s := range e.stages(sizes...) {
		p, key := randomBytes(uint64(i), sizes[i]), fmt.Sprint("k", i)
		copy(arena[s.offset:], p)
		if code := other.commit(s, "redis/0", key); code != "ERR" {
			t.Errorf("another connection's stage is committed: %q", code)
		}
		if code := e.commit(s, "redis/0", key, "PARENT", fmt.Sprint("k", i-1), "PREFIX", "PX", "60000"); code != "" {
			t.Fatal(code)
		}
		got := make([]byte, sizes[i])
		if n, err := other.Get(key, got); err != nil || n != sizes[i] || !bytes.Equal(got, p) {
			t.Errorf("GET of what was staged: %d bytes, %v", n, err)
		}
		other.expect(other.views("redis/0", key)[0], p)
		if code := e.commit(s, "redis/0", key); code != "ERR" {
			t.Error("a stage is committed twice")
		}
	}
	rep := e.do("CASCADE.STAT", "redis/0", "k3")
	if parent, prefix := rep.Elems[5], rep.Elems[13]; string(parent.Str) != "k2" || prefix.Int != 1 {
		t.Errorf("parent %q, prefix %d", parent.Str, prefix.Int)
	}
	if ttl := e.do("PTTL", "k3").Int; ttl <= 0 || ttl > 60_000 {
		t.Errorf("it ends in %d ms", ttl)
	}
	other.do("RESET")
	r.expectNothingHeld()
}

func TestStagesEnd(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	used := r.mem.Usage().Used
	back := func(how string) {
		t.Helper()
		r.expectNothingHeld()
		if now := r.mem.Usage().Used; now > used {
			t.Errorf("%s: %d bytes of the arena are taken, %d before", how, now, used)
		}
	}
	e.stages(1) // records' room is set aside with the first
	e.do("RESET")
	used = r.mem.Usage().Used
	s := e.stages(100_000, 100_000)
	if n := e.do("CASCADE.ABORT", fmt.Sprint(s[0].number), fmt.Sprint(s[1].number), "99").Int; n != 2 {
		t.Errorf("ABORT: %d", n)
	}
	back("ABORT")
	s = e.stages(100_000, 100_000, 100_000, 100_000, 100_000)
	for i, rest := range [][]string{
		{"redis/0", "k", "PARENT"}, {"redis/0", "k", "CRC32C", "4294967296"}, {"redis/0", "k", "PX", "0"}, {"redis/0", ""}, {"redis/0", strings.Repeat("k", 1025)},
	} {
		if code := e.commit(s[i], rest...); code != "ERR" {
			t.Errorf("COMMIT %.20q: %q", rest, code)
		}
	}
	back("a COMMIT that is refused")
	e.stages(100_000, 100_000)
	e.do("RESET")
	back("RESET")
	e.stages(100_000, 100_000)
	e.Close()
	back("the connection's end")
}

// TestWritesAfterCommitAreFound: a client that goes on writing makes a miss.
func TestWritesAfterCommitAreFound(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	arena := e.writable()
	s := e.stages(50_000)[0]
	copy(arena[s.offset:], randomBytes(1, 50_000))
	if code := e.commit(s, "redis/0", "k"); code != "" {
		t.Fatal(code)
	}
	arena[s.offset+7] ^= 1
	if v := e.views("redis/0", "k")[0]; v != nil {
		t.Error("a view of what was written to after COMMIT")
	}
	if _, err := e.Get("k", make([]byte, 50_000)); !errors.Is(err, resp.ErrNull) {
		t.Errorf("GET: %v", err)
	}
}

// TestCommitTakesTheClientsChecksum: a right one is used, a wrong one is found.
func TestCommitTakesTheClientsChecksum(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	arena := e.writable()
	s := e.stages(50_000, 50_000)
	for i, change := range []uint32{0, 1} {
		p := randomBytes(uint64(i), 50_000) // equal ones would become one block
		copy(arena[s[i].offset:], p)
		key := fmt.Sprint("k", i)
		if code := e.commit(s[i], "redis/0", key, "CRC32C", fmt.Sprint(block.CRC(p)^change)); code != "" {
			t.Fatal(code)
		}
		v := e.views("redis/0", key)[0]
		if got := v != nil; got != (change == 0) {
			t.Errorf("a checksum that is wrong by %d: readable %v", change, got)
		}
	}
	if n := r.store.Stats().Corrupt; n != 1 {
		t.Errorf("%d damaged blocks, want 1", n)
	}
}

func TestBudgetOfStages(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	s := e.stages(1<<20, 1<<20, 1<<20, 1<<20, 1<<20, 100, 1<<50)
	held := 0
	for _, x := range s[:5] {
		if x.number > 0 {
			held++
		}
	}
	if most := int(r.srv.budget.limit >> 20); held != most || s[6].number != 0 {
		t.Errorf("%d stages of 1 MiB, want %d", held, most)
	}
	for _, args := range [][]string{{"CASCADE.STAGE", "-1"}, {"CASCADE.STAGE", "1", "x"}, {"CASCADE.ABORT", "x"}, {"CASCADE.RELEASE", "1", ""}} {
		if code := e.code(args...); code != "ERR" {
			t.Errorf("%v: %q", args, code)
		}
	}
}

func TestPinnedBlocksStayInMemory(t *testing.T) {
	r := newRig(t, 16<<20)
	e, other := r.viewer(), r.viewer()
	for i, k := range []string{"a", "b", "c"} {
		if err := e.Set(k, randomBytes(uint64(i), 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.do("CASCADE.PIN", "redis/0", "a", "b", "absent").Int; n != 2 {
		t.Errorf("PIN: %d", n)
	}
	held := r.heldBytes()
	if n := e.do("CASCADE.PIN", "redis/0", "a").Int; n != 1 || r.heldBytes() != held {
		t.Errorf("PIN again: %d, %d bytes held, %d before", n, r.heldBytes(), held)
	}
	other.fill()
	if rep := e.do("CASCADE.CONTAINS", "redis/0", "a", "b", "c"); !bytes.Equal(rep.Str, []byte{1, 1, 0}) {
		t.Errorf("after three memories of others: %v", rep.Str)
	}
	if n := e.do("CASCADE.UNPIN", "redis/0", "b", "c", "absent").Int; n != 1 {
		t.Errorf("UNPIN: %d", n)
	}
	other.fill()
	if rep := e.do("CASCADE.CONTAINS", "redis/0", "a", "b"); !bytes.Equal(rep.Str, []byte{1, 0}) {
		t.Errorf("after UNPIN: %v", rep.Str)
	}
	e.Close()
	r.expectNothingHeld()
	other.fill()
	if rep := other.do("CASCADE.CONTAINS", "redis/0", "a"); !bytes.Equal(rep.Str, []byte{0}) {
		t.Error("it is still there after its client has gone")
	}
}

// TestPinFollowsItsName: PIN of a name that was replaced pins what it names now.
func TestPinFollowsItsName(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	pin := func() int64 { return e.do("CASCADE.PIN", "redis/0", "k").Int }
	for _, size := range []int{1 << 20, 100_000} {
		if err := e.Set("k", randomBytes(1, size)); err != nil {
			t.Fatal(err)
		}
		if n := pin(); n != 1 || r.heldBytes() != heldSize(int64(size)) {
			t.Errorf("%d pinned, %d bytes held", n, r.heldBytes())
		}
	}
	e.do("DEL", "k")
	if n := pin(); n != 0 || r.heldBytes() != 0 {
		t.Errorf("a deleted key: %d pinned, %d bytes held", n, r.heldBytes())
	}
	var keys []string
	for i := range 8 {
		keys = append(keys, fmt.Sprint("big", i))
		if err := e.Set(keys[i], randomBytes(uint64(i), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if n, want := e.do(append([]string{"CASCADE.PIN", "redis/0"}, keys...)...).Int, r.srv.budget.limit>>20; n != want {
		t.Errorf("%d of 8 pinned, want %d", n, want)
	}
}

// valueOf is what the storm stores under a key, so that everybody can check it.
func valueOf(key string) []byte {
	h := fnv.New64a()
	h.Write([]byte(key))
	return randomBytes(h.Sum64(), 1000+int(h.Sum64()%60_000))
}

// TestClientsComeAndGo: many clients view, stage, pin, delete and die in the
// middle of it. Every byte seen is right, and nothing stays held.
func TestClientsComeAndGo(t *testing.T) {
	r := newRig(t, 8<<20)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 9))
			for range 4 {
				r.storm(rng, 150)
			}
		})
	}
	wg.Wait()
	r.expectNothingHeld()
}

// storm is the life of one client.
func (r *rig) storm(rng *rand.Rand, steps int) {
	e := r.viewer()
	defer e.Close()
	arena := e.writable()
	key := func() string { return fmt.Sprint("k", rng.IntN(120)) }
	held := map[string]*seen{}
	for range steps {
		k := key()
		switch rng.IntN(8) {
		case 0, 1:
			p := valueOf(k)
			if s := e.stages(len(p))[0]; s.number > 0 {
				copy(arena[s.offset:], p)
				_ = e.commit(s, "redis/0", k) // no room for its name is no room
			}
		case 2, 3, 4:
			k2 := key()
			for i, v := range e.views("redis/0", k, k2) {
				if v != nil {
					held[fmt.Sprint(v.number)] = v
					e.expect(v, valueOf([]string{k, k2}[i]))
				}
			}
		case 5:
			for n, v := range held {
				if crc := int64(block.CRC(v.bytes)); crc != v.crc {
					r.t.Error("a view has changed")
				}
				if e.do("CASCADE.RELEASE", n).Int != 1 {
					r.t.Error("a view is lost")
				}
				delete(held, n)
			}
		case 6:
			e.do("CASCADE.PIN", "redis/0", k, key())
			e.do("CASCADE.UNPIN", "redis/0", key())
		case 7:
			e.do("DEL", k)
		}
	}
	if rng.IntN(2) == 0 {
		e.stages(1000, 1000) // it dies with them
	}
}

func TestEventsOverTheSocket(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	ask := func(args ...string) (next, lost int64, events []string) {
		t.Helper()
		rep := e.do(append([]string{"CASCADE.EVENTS"}, args...)...)
		for _, x := range rep.Elems[2].Elems {
			events = append(events, fmt.Sprintf("%s %s %s %d", x.Elems[0].Str, x.Elems[1].Str, x.Elems[2].Str, x.Elems[3].Int))
		}
		return rep.Elems[0].Int, rep.Elems[1].Int, events
	}
	e.do("SET", "before", "x")
	if next, lost, events := ask("0"); next != 1 || lost != 0 || len(events) != 0 {
		t.Fatal(next, lost, events)
	}
	e.do("SET", "k", "four")
	e.do("CASCADE.PUT", "p", "fives", "NS", "ns")
	e.do("DEL", "k")
	next, _, events := ask("1", "MAX", "2")
	if want := []string{"stored redis/0 k 4", "stored ns p 5"}; next != 3 || fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("%d, %q", next, events)
	}
	next, _, events = ask("3")
	if want := []string{"removed redis/0 k 4"}; next != 4 || fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("%d, %q", next, events)
	}
	if next, lost, events := ask("99", "WAIT", "5000"); next != 4 || lost != 1 || len(events) != 0 {
		t.Errorf("a number of another life: %d, %d, %q", next, lost, events)
	}
	if next, lost, events := ask("4", "WAIT", "1"); next != 4 || lost != 0 || len(events) != 0 {
		t.Errorf("nothing came: %d, %d, %q", next, lost, events)
	}
	e.Send("PING") // its answer does not wait for the events
	e.Send("CASCADE.EVENTS", "4", "WAIT", "5000")
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	if rep, err := e.Receive(); err != nil || string(rep.Str) != "PONG" {
		t.Fatal(rep, err)
	}
	r.client("unix").Do("SET", "late", "x")
	if rep, err := e.Receive(); err != nil || rep.Elems[0].Int != 5 || len(rep.Elems[2].Elems) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	for _, args := range [][]string{{"x"}, {"-1"}, {"1", "MAX"}, {"1", "MAX", "x"}, {"1", "WAIT", "-1"}, {"1", "NOW", "1"}} {
		if code := e.code(append([]string{"CASCADE.EVENTS"}, args...)...); code != "ERR" {
			t.Errorf("EVENTS %v: %q", args, code)
		}
	}
}

// TestWaitingClientIsMissed: one that dies while it waits for events gives back
// what it has, though its answer is not due.
func TestWaitingClientIsMissed(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.viewer()
	e.do("SET", "k", "v")
	e.views("redis/0", "k")
	next := e.do("CASCADE.EVENTS", "0").Elems[0].Int
	before := time.Now()
	e.Send("CASCADE.EVENTS", fmt.Sprint(next), "WAIT", "5000")
	if err := e.Flush(); err != nil {
		t.Fatal(err)
	}
	e.Close()
	r.expectNothingHeld()
	t.Logf("missed after %v", time.Since(before))
}

func TestWhatIsHeldIsTold(t *testing.T) {
	r := newRig(t, 16<<20)
	e := r.engine(1 << 20)
	held := func() admin.Held { return r.srv.Snapshot().Held }
	if got := held(); got != (admin.Held{}) {
		t.Fatalf("before anything: %+v", got)
	}
	e.attach()
	do := func(args ...string) resp.Reply {
		t.Helper()
		rep, err := e.Do(args...)
		if err != nil {
			t.Fatalf("%.60q: %v", args, err)
		}
		return rep
	}
	if err := e.Set("k", randomBytes(1, 5000)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // RESET gives back all but regions
		do("CASCADE.GETSHM", "redis/0", "k", "k")
		do("CASCADE.PIN", "redis/0", "k")
		do("CASCADE.STAGE", "100000", "100000", "100000")
		want := admin.Held{Bytes: 3*heldSize(5000) + 3*heldSize(100_000), Views: 2, Pins: 1, Stages: 3, Regions: 1}
		if got := held(); got != want {
			t.Errorf("held %+v, want %+v", got, want)
		}
		info := string(do("INFO", "cascade").Str)
		for _, line := range []string{"held_views:2", "held_pins:1", "held_stages:3", "regions:1", "jobs:0", "leases:1", fmt.Sprint("held_bytes:", want.Bytes)} {
			if !strings.Contains(info, "cascade_"+line+"\r\n") && !strings.HasSuffix(info, "cascade_"+line) {
				t.Errorf("INFO has no %s: %q", line, info)
			}
		}
		page := httptest.NewRecorder()
		r.srv.http.Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for _, line := range []string{"held_views 2", "held_pins 1", "held_stages 3", "regions 1", "jobs 0", "leases 1"} {
			if !strings.Contains(page.Body.String(), "\ncascade_"+line+"\n") {
				t.Errorf("/metrics has no cascade_%s", line)
			}
		}
		do("RESET")
		if got := held(); got != (admin.Held{Regions: 1}) {
			t.Errorf("after RESET: %+v", got)
		}
	}
	do("CASCADE.REGION", "DETACH", "1")
	if got := held(); got != (admin.Held{}) {
		t.Errorf("after DETACH: %+v", got)
	}
	e.attach()
	do("CASCADE.STAGE", "1")
	e.Close()
	for end := time.Now().Add(20 * time.Second); (held() != admin.Held{} || r.store.Stats().Leases != 0) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got, leases := held(), r.store.Stats().Leases; got != (admin.Held{}) || leases != 0 {
		t.Errorf("after the end: %+v, %d leases", got, leases)
	}
}
