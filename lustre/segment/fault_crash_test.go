package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/tiers"
)

// unanswered is an FS on which the n-th operation on a name is done, and said
// to have failed: its answer was lost on the way.
type unanswered struct {
	vfs.FS
	left *atomic.Int64
}

func (u unanswered) answer(err error) error {
	if u.left.Add(-1) == -1 {
		return errors.Join(err, syscall.ETIMEDOUT)
	}
	return err
}

func (u unanswered) Create(path string, perm uint32) (vfs.File, error) {
	f, err := u.FS.Create(path, perm)
	if wrong := u.answer(err); wrong != nil {
		if f != nil {
			f.Close()
		}
		return nil, wrong
	}
	return f, nil
}

func (u unanswered) Rename(from, to string) error { return u.answer(u.FS.Rename(from, to)) }
func (u unanswered) Remove(path string) error     { return u.answer(u.FS.Remove(path)) }

func (u unanswered) Mkdir(path string, perm uint32) error {
	return u.answer(u.FS.Mkdir(path, perm))
}

// way is how one operation of a script can go wrong.
type way struct {
	op vfs.Op // the operations that it can hit; "" means all
	fs func(crash *vfstest.Crash, k int) vfs.FS

	withdraws bool // the store may take a block for damaged and withdraw it
}

// rule is a way in which a rule decides about operations from the k-th on.
func rule(r vfstest.Rule) way {
	return way{op: r.Op, fs: func(crash *vfstest.Crash, k int) vfs.FS {
		fs := vfstest.NewFault(crash)
		r.After, r.Count = k, max(r.Count, 1)
		fs.Add(r)
		return fs
	}}
}

func ways() map[string]way {
	short := rule(vfstest.Rule{Op: vfs.OpRead, Err: io.ErrUnexpectedEOF, Bytes: 100})
	short.withdraws = true
	return map[string]way{
		"EIO":                 rule(vfstest.Rule{Err: vfs.ErrIO}),
		"EIO three times":     rule(vfstest.Rule{Err: vfs.ErrIO, Count: 3}),
		"ESHUTDOWN twice":     rule(vfstest.Rule{Err: syscall.ESHUTDOWN, Count: 2}),
		"ETIMEDOUT":           rule(vfstest.Rule{Err: syscall.ETIMEDOUT}),
		"ESTALE":              rule(vfstest.Rule{Err: vfs.ErrStale}),
		"ENOSPC":              rule(vfstest.Rule{Err: vfs.ErrNoSpace, Bytes: 4096}),
		"EDQUOT twice":        rule(vfstest.Rule{Err: vfs.ErrQuota, Count: 2}),
		"short write, ENOSPC": rule(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrNoSpace, Bytes: 5000}),
		"short write, EIO":    rule(vfstest.Rule{Op: vfs.OpWrite, Err: vfs.ErrIO, Bytes: 9000}),
		"short read":          short,
		"fsync once":          rule(vfstest.Rule{Op: vfs.OpSync, Err: vfs.ErrIO}),
		"close":               rule(vfstest.Rule{Op: vfs.OpClose, Err: vfs.ErrIO}),
		"evicted client": {fs: func(crash *vfstest.Crash, k int) vfs.FS {
			n := 0
			return crash.Watch(serial(func(vfs.Call) {
				if n++; n == k+1 {
					crash.Evict(uint64(k))
				}
			}))
		}},
		"answer lost": {fs: func(crash *vfstest.Crash, k int) vfs.FS {
			left := new(atomic.Int64)
			left.Store(int64(k))
			return unanswered{crash, left}
		}},
	}
}

// TestFaultAtEveryOperation lets each operation of the script go wrong in each
// way. What is acknowledged all the same is served then, and found after the
// power is cut on top of it.
func TestFaultAtEveryOperation(t *testing.T) {
	t.Parallel()
	clean := map[vfs.Op]int{}
	crash := vfstest.NewCrash()
	fs := crash.Watch(serial(func(c vfs.Call) {
		clean[c.Op]++
		clean[""]++
	}))
	script(t, newLedger(), func(i uint64) Options { return crashOptions(fs, i) }).Close()
	step := 1
	if thin() {
		step = 7
	}
	var runs, refused atomic.Int64
	t.Run("ways", func(t *testing.T) {
		for name, w := range ways() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for k := 0; k < clean[w.op]; k += step {
					refused.Add(int64(w.run(t, fmt.Sprintf("%s at operation %d", name, k), k)))
					runs.Add(1)
				}
			})
		}
	})
	t.Logf("%d operations, %d runs with one fault each, %d operations refused", clean[""], runs.Load(), refused.Load())
	if clean[""] < 150 || refused.Load() < runs.Load()/8 {
		t.Error("the faults hit nothing")
	}
}

// run lets operation k go wrong and returns how many calls were refused.
func (w way) run(t *testing.T, where string, k int) (refused int) {
	crash := vfstest.NewCrash()
	fs := w.fs(crash, k)
	l := newLedger()
	c := &client{t: t, l: l, tolerant: true}
	c.run(func(i uint64) Options { return crashOptions(fs, i) })
	l.namesVary = len(c.s.Skipped()) > 0
	for id, it := range l.items {
		got, err := read(t.Context(), c.s, it)
		switch {
		case err == nil && !bytes.Equal(got, it.Data):
			t.Errorf("%s: wrong bytes of block %v", where, id)
		case errors.Is(err, tiers.ErrCorrupt), w.withdraws && errors.Is(err, tiers.ErrNotFound):
			l.forget(id)
		case err != nil && l.acked[id] && !l.namesVary && !errors.Is(err, tiers.ErrUnavailable):
			t.Errorf("%s: acknowledged block %v of %d bytes: %v", where, id, it.Info.Size, err)
		}
	}
	l.judgeCrash(t, where, crash.After(vfstest.CutPower, uint64(k)), 9)
	c.s.Close()
	if n := crash.Handles(); n != 0 {
		t.Errorf("%s: %d files are open after Close", where, n)
	}
	return int(c.refused.Load())
}
