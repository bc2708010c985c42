package segment

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/format"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// nodeClock is one that a test moves.
type nodeClock struct{ seconds atomic.Int64 }

func (c *nodeClock) now() time.Time       { return time.Unix(1800000000+c.seconds.Load(), 5) }
func (c *nodeClock) pass(d time.Duration) { c.seconds.Add(int64(d / time.Second)) }

// on is a process of another node, so that nobody here can tell whether it runs.
func on(node byte) lease.Process {
	p := lease.Self()
	p.Boot[0] ^= 0xff
	p.Boot[1] ^= node
	return p
}

// liveOptions are those of a run on a node that nobody else is on.
func liveOptions(dir string, incarnation uint64, c *nodeClock) Options {
	o := testOptions(dir, incarnation)
	o.Process, o.Now, o.OwnOnly = on(byte(incarnation)), c.now, true
	return o
}

func adopt(t *testing.T, s *opened, number uint64) (own, foreign int) {
	t.Helper()
	err := s.Adopt(t.Context(), tiers.Part{Rank: 3, Incarnation: number}, func(f tiers.Entry) error {
		if f.OtherOwner {
			foreign++
		} else if !f.Info.ID.IsZero() {
			own++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return own, foreign
}

func evict(t *testing.T, s *opened, items ...tiers.Item) {
	t.Helper()
	for _, it := range items {
		if err := s.Evict(it.Info.ID); err != nil {
			t.Fatal(err)
		}
	}
	settleDown(s)
}

// TestTwoRunsOfOneRank: a run of the same number that lives is read and never
// changed; what it wrote after that is found when it has ended.
func TestTwoRunsOfOneRank(t *testing.T) {
	for name, ends := range map[string]struct {
		process func(lease.Process) lease.Process
		end     func(t *testing.T, first *opened, c *nodeClock)
		visits  int // that see it alive
	}{
		"closed":               {end: func(t *testing.T, first *opened, c *nodeClock) { closeStore(t, first) }},
		"silent":               {end: func(t *testing.T, first *opened, c *nodeClock) { c.pass(lease.SilentFor) }},
		"renewed, then silent": {end: func(t *testing.T, first *opened, c *nodeClock) { c.pass(lease.SilentFor); first.lease.Beat() }, visits: 1},
		"silent for an hour": {end: func(t *testing.T, first *opened, c *nodeClock) {
			first.lease.Beat()
			c.pass(lease.ClockSlack + time.Minute)
		}},
		"alive, on the same node": {process: func(lease.Process) lease.Process { return lease.Self() }, end: func(*testing.T, *opened, *nodeClock) {}, visits: 3},
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), &nodeClock{}
			o := liveOptions(dir, 1, c)
			if ends.process != nil {
				o.Process = ends.process(o.Process)
			}
			first := openStore(t, o)
			early, late := testItem(1, 9000, testName("early", 1)), testItem(2, 9000, testName("late", 2))
			put(t, first, early)

			second := openStore(t, liveOptions(dir, 2, c))
			wantBytes(t, second, early)
			evict(t, second, early)
			if m, err := second.Merge(t.Context(), 1, second.tell); err != nil || m.Segments > 0 {
				t.Errorf("merged %+v of another's, %v", m, err)
			}
			put(t, first, late)
			wantBytes(t, first, early, late)

			ends.end(t, first, c)
			for range ends.visits {
				if own, foreign := adopt(t, second, 1); own != 0 {
					t.Fatalf("%d blocks are its own, %d another's, while the other run lives", own, foreign)
				}
				c.pass(lease.SilentFor / 2)
				if ends.process != nil {
					first.lease.Beat()
				}
			}
			if ends.process != nil {
				return
			}
			if ends.visits > 0 {
				c.pass(lease.SilentFor)
			}
			if own, foreign := adopt(t, second, 1); own != 1 || foreign != 0 {
				t.Errorf("%d blocks became its own, %d another's; want the late one", own, foreign)
			}
			wantBytes(t, second, late)
			evict(t, second, late)
			wantFiles(t, dir) // both blocks are gone, and with the file its directory
			if _, err := os.Stat(filepath.Join(dir, format.FileID{Rank: 3, Incarnation: 1}.Dir())); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the empty directory is still there: %v", err)
			}
		})
	}
}

// TestOver: a run that was suspended for long and was taken over meanwhile
// notices before it acknowledges, merges or unlinks anything.
func TestOver(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	first := openStore(t, liveOptions(dir, 1, c))
	kept, gone := testItem(1, 9000, testName("kept", 1)), testItem(2, 9000)
	put(t, first, kept)
	put(t, first, gone)
	second := openStore(t, liveOptions(dir, 2, c))
	c.pass(lease.SilentFor)
	if own, _ := adopt(t, second, 1); own != 2 {
		t.Fatalf("%d blocks taken over", own)
	}

	late := testItem(3, 9000)
	wantErr(t, "Put", first.Put(t.Context(), late), tiers.ErrUnavailable)
	wantErr(t, "Put", first.Put(t.Context(), late), nil)
	wantFiles(t, dir, segmentPath(1, 0), filepath.Join(first.dirName(), format.FileID{Rank: 3, Number: 1}.Name()))
	wantBytes(t, first, kept, gone, late)
	evict(t, first, kept, gone)
	if _, err := first.Merge(t.Context(), 1, first.tell); err != nil {
		t.Error(err)
	}
	wantBytes(t, second, kept, gone)
	closeStore(t, first)
	closeStore(t, second)
	third := openStore(t, liveOptions(dir, 3, c))
	wantBytes(t, third, kept, gone, late)
	for _, loc := range third.Store.blocks {
		if !loc.file.own {
			t.Errorf("%v is not the third run's own", loc.info.ID)
		}
	}
}

func (s *Store) dirName() string {
	dir, _ := s.lease.Current()
	return filepath.Base(dir)
}

// TestOverDuringPut: a frame that was written and synced is not acknowledged
// when the directory was taken over meanwhile.
func TestOverDuringPut(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	fs := vfstest.NewFault(vfs.OS{})
	o := liveOptions(dir, 1, c)
	o.FS = fs
	first := openStore(t, o)
	put(t, first, testItem(1, 9000))
	second := openStore(t, liveOptions(dir, 2, c))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpSync, Count: 1, Block: server})
	result := make(chan error)
	late := testItem(2, 9000)
	go func() { result <- first.Put(t.Context(), late) }()
	for first.writtenFrames() < 2 {
		time.Sleep(time.Millisecond)
	}
	c.pass(lease.SilentFor)
	adopt(t, second, 1)
	close(server)
	wantErr(t, "Put", <-result, tiers.ErrUnavailable)
	_, err := first.Pin(late.Info.ID)
	wantErr(t, "Acquire", err, tiers.ErrNotFound)
	put(t, first, late)
	wantBytes(t, first, late)
}

// TestRenewal: the token changes with each beat, an answer that was lost does no
// harm, and without renewals nothing is acknowledged after a while.
func TestRenewal(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	fs := vfstest.NewFault(vfs.OS{})
	o := liveOptions(dir, 1, c)
	o.FS = fs
	s := openStore(t, o)
	put(t, s, testItem(1, 100))
	_, before := s.lease.Current()
	c.pass(lease.RenewEvery)
	s.lease.Beat()
	home, after := s.lease.Current()
	if after.Renewed != before.Renewed+60 {
		t.Errorf("renewed %d, then %d", before.Renewed, after.Renewed)
	}
	lost := after // the answer to another renewal
	lost.Renewed++
	must(t, os.Rename(filepath.Join(home, after.String()), filepath.Join(home, lost.String())))
	s.lease.Beat()
	if _, after := s.lease.Current(); after.Renewed != lost.Renewed+1 {
		t.Errorf("renewed %d, then %d", before.Renewed, after.Renewed)
	}

	fs.Add(vfstest.Rule{Op: vfs.OpRename, Path: "alive.", Err: vfs.ErrIO})
	c.pass(lease.TrustFor - time.Second)
	put(t, s, testItem(2, 100))
	c.pass(time.Second)
	wantErr(t, "Put", s.Put(t.Context(), testItem(3, 100)), tiers.ErrUnavailable)
	evict(t, s, testItem(1, 100), testItem(2, 100))
	closedFirst := segments(t, dir)
	if len(closedFirst) != 1 {
		t.Errorf("files %v: unlinked without trust", closedFirst)
	}
	fs.Clear()
	put(t, s, testItem(3, 100))
	wantBytes(t, s, testItem(3, 100))
}

// TestBeatsDoNotPileUp: while the file system does not answer one renewal waits
// for it, and Close does not wait for long.
func TestBeatsDoNotPileUp(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	fs := vfstest.NewFault(vfs.OS{})
	o := liveOptions(dir, 1, c)
	o.FS, o.CloseWait = fs, 20*time.Millisecond
	s := openStore(t, o)
	put(t, s, testItem(1, 100))
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRename, Count: 1, Block: server})
	ended := make(chan struct{})
	go func() { defer close(ended); s.lease.Beat() }()
	<-fs.UntilHung(t.Context(), 1).Done()
	put(t, s, testItem(2, 100)) // it is trusted still
	if err := s.Close(); err != nil && !errors.Is(err, tiers.ErrUnavailable) {
		t.Error(err)
	}
	close(server)
	<-ended
	s.lease.Beat() // of a closed store
	names, err := os.ReadDir(filepath.Join(dir, format.FileID{Rank: 3, Incarnation: 1}.Dir()))
	if err != nil || len(names) != 2 {
		t.Errorf("files %v, %v", names, err)
	}
	if token, _ := lease.ParseToken(names[1].Name()); token.Closed {
		t.Error("the run says that it has ended while an operation of it was under way")
	}
}

// TestClaims: of two runs that take over at the same time at most one does, also
// where there is no token.
func TestClaims(t *testing.T) {
	for name, token := range map[string]bool{"with a token": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), &nodeClock{}
			first := openStore(t, liveOptions(dir, 1, c))
			it := testItem(1, 9000)
			put(t, first, it)
			closeStore(t, first)
			if !token {
				if err := os.Remove(filepath.Join(dir, first.dirName(), closedToken(first).String())); err != nil {
					t.Fatal(err)
				}
			}
			fs := vfstest.NewFault(vfs.OS{})
			server := make(chan struct{})
			listings := 1 // before the claim
			if !token {
				listings = 2
			}
			fs.Add(vfstest.Rule{Op: vfs.OpReadDir, Path: first.dirName(), After: listings, Count: 1, Block: server})
			o := liveOptions(dir, 2, c)
			o.FS = fs
			slow := make(chan *opened)
			go func() { slow <- openStore(t, o) }()
			for len(lease.Tokens(list(t, dir, first.dirName()))) == 0 || !contains(lease.Tokens(list(t, dir, first.dirName())), 2) {
				time.Sleep(time.Millisecond)
			}
			other := openStore(t, liveOptions(dir, 3, c))
			if !token { // another that saw none either
				writeFile(t, nil, dir, first.dirName(), lease.Token{Owner: 3, Renewed: c.now().Unix(), Process: on(3)}.String())
			}
			close(server)
			s := <-slow
			owners := 0
			for _, s := range []*opened{s, other} {
				if s.Store.blocks[it.Info.ID].file.own {
					owners++
				}
				wantBytes(t, s, it)
			}
			want := 1
			if !token {
				want = 0 // both let go, and one tries again later
			}
			if owners != want {
				t.Errorf("%d owners, want %d", owners, want)
			}
		})
	}
}

func closedToken(s *opened) lease.Token {
	_, token := s.lease.Current()
	token.Closed = true
	return token
}

func list(t *testing.T, path ...string) []string {
	entries, err := os.ReadDir(filepath.Join(path...))
	if err != nil {
		t.Error(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func contains(all []lease.Token, owner uint64) bool {
	for _, token := range all {
		if token.Owner == owner {
			return true
		}
	}
	return false
}

// TestOwnerOfMany: what a run took over is free once that run has ended, and a
// run that wrote nothing leaves no directory behind for long.
func TestOwnerOfMany(t *testing.T) {
	dir, c := t.TempDir(), &nodeClock{}
	var items []tiers.Item
	for run := uint64(1); run <= 3; run++ {
		s := openStore(t, liveOptions(dir, run, c))
		it := testItem(run, 9000)
		put(t, s, it)
		items = append(items, it)
		if run < 3 {
			closeStore(t, s)
		} else {
			c.pass(lease.ClockSlack + time.Second) // the last one was killed on its node
		}
	}
	for run := uint64(4); run <= 6; run++ {
		s := openStore(t, liveOptions(dir, run, c))
		wantBytes(t, s, items...)
		for _, it := range items {
			if !s.Store.blocks[it.Info.ID].file.own {
				t.Errorf("run %d does not own what was left", run)
			}
		}
		if run == 6 {
			evict(t, s, items...)
		}
		closeStore(t, s)
	}
	last := openStore(t, liveOptions(dir, 7, c))
	closeStore(t, last)
	if names := list(t, dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

// TestAdoptedIsDurable: what is adopted of another rank's unsealed segment counts
// as stored here, so a power cut must not take it.
func TestAdoptedIsDurable(t *testing.T) {
	crash := vfstest.NewCrash()
	fault := vfstest.NewFault(crash)
	o := crashOptions(fault, 1)
	o.Rank = 4
	other := openStore(t, o)
	synced, loose := testItem(1, 9000), testItem(2, 9000)
	put(t, other, synced)
	fault.Add(vfstest.Rule{Op: vfs.OpSync, Err: vfs.ErrIO})
	wantErr(t, "Put", other.Put(t.Context(), loose), tiers.ErrUnavailable)

	for name, broken := range map[string]bool{"synced": false, "cannot be synced": true} {
		left := crash.After(vfstest.CutProcess, 1)
		fs := vfstest.NewFault(left)
		if broken {
			fs.Add(vfstest.Rule{Op: vfs.OpSync, Path: "rank004", Err: vfs.ErrIO})
		}
		s := openStore(t, crashOptions(fs, 9))
		err := s.Put(t.Context(), loose)
		if stored := errors.Is(err, tiers.ErrExists); stored == broken || err != nil && !stored {
			t.Errorf("%s: put of a block that was read from another's page cache: %v", name, err)
		}
		for seed := range uint64(20) {
			after := openStore(t, crashOptions(left.After(vfstest.CutPower, seed), 10))
			if _, err := read(t.Context(), after, loose); err != nil {
				t.Fatalf("%s, seed %d: %v", name, seed, err)
			}
		}
	}
}
