package index

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// faults fails file operations of one kind from the nth on, until healed.
type faults struct {
	kind   string
	file   string // part of the path
	from   int64
	seen   atomic.Int64
	healed atomic.Bool
	hits   atomic.Int64
}

func (f *faults) String() string { return f.kind }

func (f *faults) MaybeError(op errorfs.Op) error {
	if f.healed.Load() || opName(op.Kind) != f.kind || !strings.Contains(op.Path, f.file) {
		return nil
	}
	if f.seen.Add(1) <= f.from {
		return nil
	}
	f.hits.Add(1)
	return errInjected
}

var errInjected = errors.New("injected by the test")

var opNames = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpOpen: "open", errorfs.OpOpenDir: "opendir",
	errorfs.OpRemove: "remove", errorfs.OpRename: "rename", errorfs.OpReuseForWrite: "reuse", errorfs.OpFileRead: "read",
	errorfs.OpFileReadAt: "pread", errorfs.OpFileWrite: "write", errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "syncdata",
	errorfs.OpFileSyncTo: "syncto", errorfs.OpFileClose: "close", errorfs.OpFileFlush: "flush", errorfs.OpFilePreallocate: "preallocate",
	errorfs.OpFileStat: "fstat", errorfs.OpStat: "stat", errorfs.OpList: "list", errorfs.OpRemoveAll: "removeall", errorfs.OpMkdirAll: "mkdir",
}

func opName(k errorfs.OpKind) string { return opNames[k] }

// Whatever fails, wherever: the process goes on, no call hangs, no answer is
// wrong, and once the disk works again a rebuild brings all back.
func TestFaults(t *testing.T) {
	s := newScript(5, 40)
	s.batches = s.batches[:40]
	for _, file := range []string{".sst", "MANIFEST", "marker", "OPTIONS", ""} {
		for kind := range opNames {
			for _, from := range []int64{0, 2, 9} {
				f := &faults{kind: opName(kind), file: file, from: from}
				t.Run(fmt.Sprintf("%s/%s/%d", file, f.kind, from), func(t *testing.T) {
					t.Parallel()
					s.survives(t, f)
				})
			}
		}
	}
}

func (s *script) survives(t *testing.T, f *faults) {
	o := memOptions()
	o.MemTableBytes, o.CloseWait = 16<<10, 20*time.Second
	o.fs = errorfs.Wrap(vfs.NewMem(), f)
	o.Now = func() time.Time { return s.states[0].now }
	x, err := Open(o)
	if err != nil {
		if !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i, b := range s.batches {
		err := x.PutBatch(ctx, b)
		if err == nil && i%5 == 0 {
			err = x.Sync(ctx)
		}
		if err == nil && i == 20 {
			err = x.Retune(ctx, 4, 2)
		}
		if err != nil && !errors.Is(err, ErrBroken) && f.hits.Load() == 0 {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	if ctx.Err() != nil {
		t.Fatal("a call hung")
	}
	if x.Err() != nil {
		if _, err := x.Get(id(1)); !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrBroken) {
			t.Errorf("get of a broken index: %v", err)
		}
		x.Stats()
	}
	f.healed.Store(true)
	s.neverWrong(t, x)
	if err := x.Close(); err != nil {
		t.Error("close: ", err)
	}
}

// Pebble ends the process when its MANIFEST cannot be synced, and retries a
// flush that fails for ever. Here both break the index.
func TestFatalErrorsBreakTheIndex(t *testing.T) {
	for name, f := range map[string]*faults{
		"manifest": {kind: "sync", file: "MANIFEST", from: 2},
		"flush":    {kind: "write", file: ".sst"},
		"create":   {kind: "create", file: ".sst"},
	} {
		t.Run(name, func(t *testing.T) {
			o := memOptions()
			o.fs = errorfs.Wrap(vfs.NewMem(), f)
			x := open(t, o)
			var err error
			for n := uint64(0); err == nil && n < 20; n++ {
				put(t, x, Batch{Segment: seg(1), Mark: n, Blocks: stored(seg(1), n), Names: chain(1, n)})
				err = x.Sync(context.Background())
			}
			if !errors.Is(err, ErrBroken) || f.hits.Load() == 0 {
				t.Fatalf("sync: %v after %d faults", err, f.hits.Load())
			}
			if err := x.PutBatch(context.Background(), Batch{Segment: seg(1)}); !errors.Is(err, ErrBroken) {
				t.Error("put: ", err)
			}
			if n, err := leading(x, keys(0)); n != 0 || !errors.Is(err, ErrBroken) {
				t.Error("probe: ", n, err)
			}
			f.healed.Store(true)
			if err := x.Rebuild(context.Background(), each(Batch{Segment: seg(2), Mark: 1, Blocks: stored(seg(2), 7), Names: chain(1, 7)})); err != nil {
				t.Fatal(err)
			}
			probe(t, x, 1, 7)
		})
	}
}

// A database that broke stays in memory, so that happens a few times only.
func TestBrokenTooOften(t *testing.T) {
	f := &faults{kind: "write", file: ".sst"}
	o := memOptions()
	o.fs = errorfs.Wrap(vfs.NewMem(), f)
	x := open(t, o)
	for i := range maxAbandoned + 1 {
		put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 1)})
		if err := x.Sync(context.Background()); !errors.Is(err, ErrBroken) {
			t.Fatal(err)
		}
		err := x.Rebuild(context.Background(), each())
		if given := i == maxAbandoned; given != (err != nil) || given && !errors.Is(err, ErrBroken) {
			t.Fatalf("rebuild %d: %v", i, err)
		}
	}
}
