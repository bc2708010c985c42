package transfer

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/gpu/direct"
	"cascadekv/internal/region"
)

// A budget's limits are those of the system.
func TestRegionBudget(t *testing.T) {
	b := newBudget()
	if b.mu.limit.Mappings < 1 || b.mu.limit.Mappings > maxMappings()/2 || b.mu.limit.Tables > b.memory/2 {
		t.Errorf("%+v on a machine with %d mappings and %d bytes", b.mu.limit, maxMappings(), b.memory)
	}
	// Page tables: 16 mappings of all memory are one connection's, 32 all that there are.
	whole := region.CostOf(b.memory, b.memory, 1)
	var has region.Cost
	n := 0
	for b.mu.limit.Address >= b.memory && b.Take(has, whole) == nil {
		has = has.Plus(whole)
		n++
	}
	if n < 8 || n > 16 {
		t.Errorf("one connection maps all memory %d times", n)
	}
}

// The jobs of all connections have limits beside those of each.
func TestJobsOfAllConnectionsAreBounded(t *testing.T) {
	p := &Pool{Budget: newBudget(), turnBytes: turnBytes}
	p.mu.paused = true
	layout := layoutOf(t)
	add := func(x *Client, number int64, key string) string {
		tr := &Transfer{pool: p, keys: []string{key}, status: make([]byte, 1), layout: layout}
		j := newJob(tr, number, x, &Region{})
		t.Cleanup(j.cancel)
		return p.submit(j)
	}
	var all []*Client
	n := 0
	for bad := ""; bad == ""; {
		x := p.NewClient()
		all = append(all, x)
		for i := range int64(MaxJobs) {
			if bad = add(x, i, "k"); bad != "" {
				break
			}
			n++
		}
	}
	if n != mostJobs {
		t.Errorf("%d jobs, want %d", n, mostJobs)
	}
	for _, x := range all {
		x.CancelAll()
		x.Collect()
	}
	if p.mu.jobs != 0 || p.mu.bytes != 0 {
		t.Errorf("%d jobs of %d bytes are left", p.mu.jobs, p.mu.bytes)
	}
	large := strings.Repeat("k", MaxJobBytes-1000)
	n = 0
	for add(p.NewClient(), 1, large) == "" {
		n++
	}
	if n != mostJobBytes/MaxJobBytes {
		t.Errorf("%d of the largest jobs, want %d", n, mostJobBytes/MaxJobBytes)
	}
}

// Connections take turns, whatever one of them has queued.
func TestConnectionsTakeTurns(t *testing.T) {
	p := &Pool{Budget: newBudget(), turnBytes: turnBytes} // no workers: turns are taken by hand
	var all []*Client
	for k, jobs := range []int{3, 1, 2} {
		x := p.NewClient()
		all = append(all, x)
		for j := range jobs {
			tr := &Transfer{pool: p, keys: []string{"k"}, status: make([]byte, 1), layout: layoutOf(t)}
			if bad := p.submit(newJob(tr, int64(10*k+j), x, &Region{notify: -1})); bad != "" {
				t.Fatal(bad)
			}
		}
	}
	p.mu.workers = 1
	var order []int64
	for j := p.take(); j != nil; j = p.take() {
		more := j.number == 0 && len(order) == 0 // its first turn is not its last
		order = append(order, j.number)
		p.made(j, more)
	}
	if want := []int64{0, 10, 20, 0, 21, 1, 2}; !slices.Equal(order, want) {
		t.Errorf("turns: %v, want %v", order, want)
	}
	if p.mu.workers != 0 || p.mu.waiting != 0 || len(p.mu.ring) != 0 {
		t.Errorf("%d workers, %d jobs and %d connections are left", p.mu.workers, p.mu.waiting, len(p.mu.ring))
	}
	for _, x := range all {
		if !x.idle() {
			t.Error("a connection is not idle")
		}
		x.Collect()
		if len(x.jobs) != 0 || x.bytes != 0 {
			t.Errorf("%d jobs of %d bytes are left", len(x.jobs), x.bytes)
		}
	}
}

func layoutOf(t *testing.T) region.Layout {
	l, err := region.ParseLayout(binary.LittleEndian.AppendUint64(make([]byte, 8), 1), 1, 1) // offset 0, length 1
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The end of a connection waits for a job that does not react yet.
func TestRegionsOutliveTheJobsThatRun(t *testing.T) {
	p := &Pool{Budget: newBudget(), turnBytes: turnBytes}
	x := p.NewClient()
	r, err := region.AttachSize(memfdToGive(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	at := &Region{Region: r, fd: -1, notify: -1}
	x.put(1, at)
	for j := range 2 {
		if bad := p.submit(newJob(&Transfer{pool: p, keys: []string{"k"}, status: make([]byte, 1)}, int64(j), x, at)); bad != "" {
			t.Fatal(bad)
		}
	}
	running := p.take()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = x.Close()
	}()
	<-running.ctx.Done()
	select {
	case <-ended:
		t.Error("the connection ended under its job")
	case <-time.After(20 * time.Millisecond):
	}
	if r.Size() == 0 {
		t.Error("the region went under its job")
	}
	p.made(running, false)
	<-ended
	if r.Size() != 0 {
		t.Error("the region is left")
	}
}

// endsAfter is a context that ends when it has been asked for that so often.
type endsAfter struct {
	context.Context
	left atomic.Int64
}

func (c *endsAfter) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// TestCancelledAtAnyMoment: whenever a load of what the store has is cancelled, each key is loaded or cancelled, and no miss.
func TestCancelledAtAnyMoment(t *testing.T) {
	r := newRingRig(t, direct.Options{}, nil)
	for asked := range int64(60) {
		ctx := &endsAfter{Context: t.Context()}
		ctx.left.Store(asked)
		status := r.transfer(1, After{}, 0, 0, 1, 2, 3).Run(ctx)
		if slices.ContainsFunc(status, func(s byte) bool { return s != Moved && s != Cancelled }) {
			t.Errorf("cancelled when that has been asked for %d times: %v", asked, status)
		}
	}
}

// Each call is made once, by as many as there are helpers and the one who
// waits; helpers that others keep busy are not waited for.
func TestSpread(t *testing.T) {
	const helpers, callers, calls = 2, 3, 50
	p := &Pool{helpers: make(chan struct{}, helpers)}
	var now, most atomic.Int64
	var made [callers][calls]atomic.Int64
	var all sync.WaitGroup
	for c := range callers {
		all.Go(func() {
			p.spread(calls, func(i int) {
				n := now.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				made[c][i].Add(1)
				time.Sleep(time.Millisecond)
				now.Add(-1)
			})
			for i := range calls {
				if n := made[c][i].Load(); n != 1 {
					t.Errorf("call %d of %d was made %d times when all had ended", i, c, n)
				}
			}
		})
	}
	all.Wait()
	if n := most.Load(); n <= callers || n > callers+helpers {
		t.Errorf("%d calls at once, want more than %d and at most %d", n, callers, callers+helpers)
	}
	if len(p.helpers) != 0 {
		t.Errorf("%d helpers are still busy", len(p.helpers))
	}
	p.spread(0, func(int) { t.Error("a call of none") })
}

// memfdToGive returns a memfd that somebody else closes.
func memfdToGive(t *testing.T) int {
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, 4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
