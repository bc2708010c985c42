package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// work puts and removes blocks until step is false, each one's id a number that counts up. stored is
// called with what a Commit made visible, removing before what is removed.
func (h *host) work(s *Store, rnd *rand.Rand, first int, step func() bool, stored, removing func(n int)) error {
	var have []int
	s.Each(func(id block.ID) bool {
		have = append(have, int(binary.LittleEndian.Uint64(id[:]))-1)
		return true
	})
	for next := first; step(); {
		n := 1 + rnd.IntN(3)
		switch err := h.store(s, ids(next, n)); {
		case errors.Is(err, tiers.ErrFull):
			for range min(n, len(have)) {
				i := rnd.IntN(len(have))
				removing(have[i])
				s.Remove(ids(have[i], 1)[0])
				have[i] = have[len(have)-1]
				have = have[:len(have)-1]
			}
			continue
		case err != nil:
			return err
		}
		for i := range n {
			have = append(have, next+i)
			stored(next + i)
		}
		next += n
	}
	return nil
}

// TestCrash ends the process, the node or the power before any operation of the
// file system. What is found then is never wrong, not even by an object whose checksum
// has to be looked at; after the end of a process all that was committed is there, and after
// any end what the log had when the store was last opened or closed.
func TestCrash(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 1
	}
	found, lost := 0, 0
	for seed := range seeds {
		fs, dirs := disks(t, 2)
		h := newHost(small, 4)
		o := h.options(dirs, 8)
		o.unlocked = true
		rnd := rand.New(rand.NewPCG(seed, 5))
		type moment struct {
			fs        *vfstest.Crash
			what      string
			committed []int // that have to be there
		}
		var moments []moment
		committed, durable := map[int]bool{}, map[int]bool{}
		ops, opened, armed := 0, 0, false // opened: operations since Open, below 0 in it
		var mu sync.Mutex                 // a batch has several workers
		o.FS = fs.Watch(func(c vfs.Call) {
			mu.Lock()
			defer mu.Unlock()
			if !armed || c.Op == vfs.OpRead {
				return
			}
			ops++
			if opened++; opened > 8 && rnd.IntN(12) > 0 {
				return
			}
			if opened <= 0 && !strings.Contains(c.Path, logPrefix) {
				return // of the pool's making
			}
			for cut, name := range map[vfstest.Cut]string{vfstest.CutProcess: "process", vfstest.CutNode: "node", vfstest.CutPower: "power"} {
				m := moment{fs: fs.After(cut, seed*1000+uint64(ops)), what: fmt.Sprintf("seed %d, %s before operation %d, %s of %s", seed, name, ops, c.Op, c.Path)}
				have := durable
				if cut == vfstest.CutProcess {
					have = committed
				}
				for n := range have {
					m.committed = append(m.committed, n)
				}
				moments = append(moments, m)
			}
		})
		for life := range 3 { // starts are cut too
			armed = life > 0
			o.Files, opened = 8+2*(life%2), -1_000_000
			durable = maps.Clone(committed) // Close has seen to that
			s, err := Open(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			grown(t, s)
			end := ops + 150
			opened = 0
			armed = true
			// One commit at a time, so that a moment lies between two.
			if err := h.work(s, rnd, 1000*life, func() bool { return ops < end }, func(n int) { committed[n] = true }, func(n int) {
				delete(committed, n)
				delete(durable, n)
			}); err != nil {
				t.Fatal(err)
			}
			if life == 1 {
				clear(committed) // the next pool is smaller, and drops some
			}
			if err := s.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		armed = false
		all := append(append(ids(0, 150), ids(1000, 150)...), ids(2000, 150)...)
		for _, m := range moments {
			o.FS, o.Files = m.fs, 12
			s, err := Open(context.Background(), o)
			if err != nil {
				t.Fatalf("%s: %v", m.what, err)
			}
			grown(t, s)
			for _, n := range m.committed {
				if s.Has(ids(n, 1)) == 0 {
					t.Fatalf("%s: block %d is gone", m.what, n)
				}
			}
			had := s.Stats().Blocks
			if got := h.check(t, s, all); got != had || s.Stats().Corrupt != 0 {
				t.Fatalf("%s: %d of %d blocks came, %+v", m.what, got, had, s.Stats())
			}
			found += had
			if had == 0 {
				lost++
			}
			// The pool is as good as before.
			for _, id := range all {
				s.Remove(id)
			}
			h.mustStore(t, s, ids(9000, 4))
			h.mustStore(t, s, ids(9004, 4))
			closeStore(t, s)
			s = open(t, o)
			if got := h.check(t, s, ids(9000, 8)); got != 8 || s.Stats().Blocks != 8 {
				t.Fatalf("%s: afterwards %d of 8 blocks, %+v", m.what, got, s.Stats())
			}
			closeStore(t, s)
		}
		if len(moments) < 30 {
			t.Errorf("seed %d: %d moments", seed, len(moments))
		}
	}
	if found == 0 || lost > found {
		t.Errorf("%d blocks were found; after %d ends none", found, lost)
	}
}

// TestKill kills a process that puts and removes blocks, as kill -9 does, at random
// moments, and opens what it left.
func TestKill(t *testing.T) {
	if dirs := os.Getenv("CASCADE_TEST_STORE"); dirs != "" {
		killed(t, strings.Split(dirs, ":"))
		return
	}
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	h := newHost(small, 4)
	committed := map[int]bool{}
	for round := range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "CASCADE_TEST_STORE="+strings.Join(dirs, ":"), fmt.Sprintf("CASCADE_TEST_ROUND=%d", round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		left := 3 + rand.IntN(200)
		for lines.Scan() {
			verb, text, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(text)
			switch {
			case err != nil: // of the test itself
			case verb == "stored":
				committed[n] = true
			case verb == "removing":
				delete(committed, n)
			}
			if left--; left == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || left > 0 {
			t.Fatalf("round %d: the process ended by itself: %v", round, err)
		}
		s := open(t, h.options(dirs, 12))
		all := ids(0, 1000*rounds)
		for n := range committed {
			if s.Has(all[n:n+1]) == 0 {
				t.Errorf("round %d: block %d is gone", round, n)
			}
		}
		had, now := s.Stats().Blocks, []block.ID{}
		s.Each(func(id block.ID) bool { now = append(now, id); return true })
		if got := h.check(t, s, now); got != had || s.Stats().Corrupt != 0 || had == 0 {
			t.Fatalf("round %d: %d of %d blocks came, %+v", round, got, had, s.Stats())
		}
		for _, id := range now { // the next process begins with none
			s.Remove(id)
		}
		clear(committed)
		closeStore(t, s)
	}
}

// killed is the process that TestKill kills.
func killed(t *testing.T, dirs []string) {
	round, err := strconv.Atoi(os.Getenv("CASCADE_TEST_ROUND"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(small, 4)
	s := open(t, h.options(dirs, 12))
	steps := 0
	err = h.work(s, rand.New(rand.NewPCG(uint64(round), 1)), 1000*round, func() bool { steps++; return steps < 300 },
		func(n int) { fmt.Printf("stored %d\n", n) }, func(n int) { fmt.Printf("removing %d\n", n) })
	t.Fatal("not killed", err)
}

// TestDamagedLog: a flipped bit anywhere in the log is a block that is missing, and
// those behind it; a log that is cut ends there.
func TestDamagedLog(t *testing.T) {
	fs, h, o := rig(t, 1, Shape{Layers: 1, BlockTokens: 1, KVHeads: 1, HeadDim: 1, ElementBytes: 1}, 4, 4)
	s := open(t, o)
	all := ids(0, 4)
	h.mustStore(t, s, all[:2])
	h.mustStore(t, s, all[2:])
	closeStore(t, s)
	log := filepath.Join(o.Dirs[0], logName(1))
	for off := int64(0); off < s.log.size; off++ {
		if off > 64 && off < page-8 && off%97 > 0 {
			continue // the rest of the header
		}
		cut := fs.After(vfstest.CutProcess, 1)
		if err := cut.Flip(log, off, 1<<(off%8)); err != nil {
			t.Fatal(err)
		}
		o.FS = cut
		s := open(t, o)
		want := 0
		if end := int64(page + recordBytes); off >= end { // behind the end of the log before
			want = int((off - end) / (recordBytes + 8))
		}
		if got := h.check(t, s, all); got != want || s.Stats().Corrupt != 0 || s.Stats().Blocks != want {
			t.Fatalf("offset %d: %d blocks, want %d", off, got, want)
		}
		closeStore(t, s)
	}
}

// TestUnfinishedLog: of a log that does not have all blocks of the one before yet
// nothing counts.
func TestUnfinishedLog(t *testing.T) {
	fs, h, o := rig(t, 2, small, 4, 4)
	s := open(t, o)
	all := ids(0, 4)
	h.mustStore(t, s, all)
	closeStore(t, s)
	head := s.head
	head.generation++
	first := head.encode()
	log := appendRecord(first[:page:page], headerCRC(first), 1, s.registered()[0])
	f, err := fs.Create(filepath.Join(o.Dirs[0], logName(head.generation)), 0o600)
	if err == nil {
		_, err = f.Pwrite(log, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, o)
	if got := h.check(t, s, all); got != 4 || s.head.generation != head.generation+1 {
		t.Errorf("%d blocks, generation %d", got, s.head.generation)
	}
}
