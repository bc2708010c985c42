package server

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cascadekv/internal/admin"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/testneed"
	"cascadekv/internal/transfer"
)

// sparse is a memfd of size bytes, none of which take memory.
func sparse(t *testing.T, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	return fd
}

// attachSparse has a new client attach a file n times, and returns how often it
// was, and the last error.
func (r *rig) attachSparse(fd, n int) (attached int, last error) {
	r.t.Helper()
	s, c := r.connect()
	for range n {
		s.fds = []int{fd}
		if _, err := c.Do("CASCADE.REGION", "FD"); err != nil {
			last = err
			continue
		}
		attached++
	}
	return attached, last
}

// Regions that are larger than address space are refused before the process has
// none left, and the rank goes on.
func TestSparseRegionsHaveABudget(t *testing.T) {
	r := newRig(t, 16<<20)
	fd := sparse(t, region.MaxSize)
	total := 0
	var last error
	for range 20 {
		n, err := r.attachSparse(fd, 8)
		if n > 1 {
			t.Errorf("one connection has %d regions of %d bytes", n, int64(region.MaxSize))
		}
		total, last = total+n, err
	}
	if want := transfer.RegionAddress / region.MaxSize; total != want {
		t.Errorf("%d regions of %d bytes, want %d", total, int64(region.MaxSize), want)
	}
	if last == nil || !strings.Contains(last.Error(), "address space") || !strings.Contains(last.Error(), "detach") {
		t.Errorf("the last one: %v", last)
	}
	if s := r.srv.shared(); s.Address != transfer.RegionAddress || s.AddressMost != transfer.RegionAddress {
		t.Errorf("it is counted as %+v", s)
	}
	if err := r.client("unix").Set("k", []byte("v")); err != nil {
		t.Errorf("SET meanwhile: %v", err)
	}
}

// What a region took is there again when its connection ends.
func TestRegionsGiveTheirBudgetBack(t *testing.T) {
	r := newRig(t, 16<<20, func(o *Options) { o.Limits.Shared = 100 })
	fd := sparse(t, region.MaxSize)
	for i := range 10 {
		s, c := r.connect()
		s.fds = []int{fd}
		if _, err := c.Do("CASCADE.REGION", "FD"); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		s.fds = []int{fd}
		if _, err := c.Do("CASCADE.REGION", "FD"); err == nil {
			t.Errorf("round %d: half of the budget was for one", i)
		}
		c.Close()
		for until := time.Now().Add(5 * time.Second); r.srv.shared().Address != 0 && time.Now().Before(until); {
			time.Sleep(time.Millisecond)
		}
	}
	if s := r.srv.shared(); s.Address != 0 || s.Descriptors != 0 {
		t.Errorf("%+v is left", s)
	}
}

// The descriptors of regions, and of other shared files, are bounded together.
func TestDescriptorsOfRegionsAreBounded(t *testing.T) {
	const most = 150
	r := newRig(t, 16<<20, func(o *Options) { o.Limits.Shared, o.Limits.MaxConnections = most, 1000 })
	fd := sparse(t, 4096)
	total := 0
	var last error
	for range 5 {
		n, err := r.attachSparse(fd, transfer.MaxRegions)
		total, last = total+n, err
	}
	if total != most {
		t.Errorf("%d regions, want %d", total, most)
	}
	if last == nil || !strings.Contains(last.Error(), fmt.Sprintf("may take %d", most)) {
		t.Errorf("the last one: %v", last)
	}
	if _, err := r.client("unix").Do("CASCADE.INDEX", "TOUCHES"); err == nil || !strings.Contains(err.Error(), "descriptors") {
		t.Errorf("a touch ring more: %v", err)
	}
}

// greedy opens clients that ask for a value many times and never read.
func (r *rig) greedy(network string, n int, key func(i int) string) (end func()) {
	r.t.Helper()
	var conns []net.Conn
	for i := range n {
		c, _ := r.raw(network)
		conns = append(conns, c)
		write(c, bytes.Repeat(fmt.Appendf(nil, "GET %s\r\n", key(i)), 8))
	}
	return func() {
		for _, c := range conns {
			c.Close()
		}
	}
}

// settle waits until what is in flight grows no more.
func (r *rig) settle() admin.InFlight {
	last, same := r.srv.inFlight(), 0
	for until := time.Now().Add(20 * time.Second); same < 10 && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
		now := r.srv.inFlight()
		if same++; now.Bytes != last.Bytes {
			same = 0
		}
		last = now
	}
	return last
}

// Clients that ask for large values and do not read take a bounded memory of the
// kernel, all together.
func TestRepliesInFlightAreBounded(t *testing.T) {
	const n, limit = 200, 64 << 20
	enoughFiles(t, n)
	for _, network := range []string{"unix", "tcp"} {
		for _, lend := range []bool{true, false} {
			t.Run(fmt.Sprint(network, lend), func(t *testing.T) {
				r := newRig(t, 64<<20, func(o *Options) {
					o.InFlight, o.ZeroCopy, o.Limits.MaxConnections = limit, lend, 4096
				})
				if err := r.client("unix").Set("large", randomBytes(1, 4<<20)); err != nil {
					t.Fatal(err)
				}
				end := r.greedy(network, n, func(int) string { return "large" })
				f := r.settle()
				t.Logf("%+v", f)
				if f.Buffers > limit || f.Bytes > limit+n*(1<<20) || f.Bytes < n*(64<<10) {
					t.Errorf("%d clients have %+v", n, f)
				}
				if f.Wide == 0 || f.Wide == n {
					t.Errorf("%d of %d connections have wide buffers", f.Wide, n)
				}
				if err := r.client("unix").Set("k", []byte("v")); err != nil {
					t.Errorf("SET of another client: %v", err)
				}
				end()
				left := func() bool { f := r.srv.inFlight(); return f.Buffers != 0 || f.Stalled != 0 }
				for until := time.Now().Add(10 * time.Second); left() && time.Now().Before(until); {
					time.Sleep(5 * time.Millisecond)
				}
				if f := r.srv.inFlight(); f.Buffers != 0 || f.Wide != 0 || f.Stalled != 0 {
					t.Errorf("%+v is left", f)
				}
			})
		}
	}
}

// Blocks that replies borrow which nobody reads are given back soon when they are
// a large part of memory.
func TestRepliesThatAreNotReadReleaseTheirBlocks(t *testing.T) {
	r := newRig(t, 64<<20, func(o *Options) { o.InFlight = 1 }) // no wide buffers
	c := r.client("unix")
	for i := range 6 {
		if err := c.Set(fmt.Sprint("k", i), randomBytes(uint64(i), 8<<20)); err != nil {
			t.Fatal(err)
		}
	}
	r.greedy("tcp", 6, func(i int) string { return fmt.Sprint("k", i) })
	until := time.Now().Add(15 * time.Second)
	for i := 0; time.Now().Before(until); i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		st, err := r.store.Stage(ctx, 40<<20)
		cancel()
		if err == nil {
			st.Abort()
			return
		}
	}
	t.Errorf("no room after a while: %+v", r.srv.inFlight())
}

// A client that pauses before it reads gets what it asked for, unharmed, whichever
// way it is sent.
func TestSlowReadersGetWhatTheyAskedFor(t *testing.T) {
	const patience = 100 * time.Millisecond // for which a server waits with a thread
	for _, lend := range []bool{true, false} {
		r := newRig(t, 64<<20, func(o *Options) { o.ZeroCopy = lend })
		value := randomBytes(1, 12<<20)
		if err := r.client("unix").Set("k", value); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"unix", "tcp"} {
			c, rd := r.raw(network)
			fmt.Fprint(c, "GET k\r\n")
			time.Sleep(3 * patience)
			if line, err := rd.ReadString('\n'); line != fmt.Sprintf("$%d\r\n", len(value)) {
				t.Fatal(line, err)
			}
			got := make([]byte, 0, len(value))
			for len(got) < len(value) {
				if len(got)%16 == 0 {
					time.Sleep(patience + patience/4)
				}
				n, err := rd.Read(got[len(got):min(len(got)+1<<20, len(value))])
				if err != nil {
					t.Fatal(err)
				}
				got = got[:len(got)+n]
			}
			if !bytes.Equal(got, value) {
				t.Errorf("%s, lend %v: other bytes", network, lend)
			}
		}
	}
}

// Who is not the rank's own user can not have it keep descriptors.
func TestDescriptorsOfOtherUsers(t *testing.T) {
	testneed.That(t, os.Geteuid() == 0, "root", "run this test as root: it connects as another user")
	r := newRig(t, 16<<20, func(o *Options) { o.AllowUIDs = []int{65534} })
	e := r.engine(4096)
	d, m := r.open()
	c := r.clientOf(65534)
	if _, err := c.Do("PING"); err != nil {
		t.Fatal(err)
	}
	r.srv.mu.Lock()
	for c := range r.srv.conns {
		if !c.own && c.sock.ReceivesDescriptors() {
			t.Error("a connection of another user takes descriptors")
		}
	}
	r.srv.mu.Unlock()
	r.settles(d, m)
	_ = e
}
