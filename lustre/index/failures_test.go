package index

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestFailuresHaveTests: every test that the package comment names is there.
func TestFailuresHaveTests(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	files, _ := filepath.Glob("*_test.go")
	for _, f := range append(files, "../catalogue/catalogue_test.go") {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(doc), -1)
	if len(named) < 10 {
		t.Errorf("the package comment names %d tests", len(named))
	}
	for _, name := range named {
		if !strings.Contains(string(all), "func "+name+"(t *testing.T)") {
			t.Errorf("there is no %s", name)
		}
	}
}

// fullDisk lets nothing more be written until there is room.
type fullDisk struct{ faults }

func (f *fullDisk) MaybeError(op errorfs.Op) error {
	switch opName(op.Kind) {
	case "create", "write", "preallocate", "mkdir", "link":
		if f.seen.Load() > 0 && !f.healed.Load() {
			return syscall.ENOSPC
		}
	}
	return nil
}

// TestFullDisk: nothing is lost but the index, which says why, and is there again
// once there is room.
func TestFullDisk(t *testing.T) {
	f := &fullDisk{}
	o := memOptions()
	o.fs = errorfs.Wrap(vfs.NewMem(), f)
	x := open(t, o)
	ctx := context.Background()
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 7), Names: chain(1, 7)})
	f.seen.Store(1)
	if err := x.Sync(ctx); !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("sync on a full disk: %v", err)
	}
	if _, _, err := x.Find(key(7)); !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrBroken) {
		t.Error("find: ", err)
	}
	again := each(Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 7), Names: chain(1, 7)})
	if err := x.Rebuild(ctx, again); !errors.Is(err, ErrBroken) {
		t.Fatalf("a rebuild on a full disk: %v", err)
	}
	f.healed.Store(true)
	if err := x.Rebuild(ctx, again); err != nil {
		t.Fatal(err)
	}
	probe(t, x, 1, 7)
}

// TestPanicsBreakTheIndex: a panic of Pebble's in a call of ours, be it in a read,
// a plan of a change or what runs beside the caller.
func TestPanicsBreakTheIndex(t *testing.T) {
	for name, harm := range map[string]func(x *Index) error{
		"read": func(x *Index) error { return x.read(func(*reader) error { panic("a mistake") }) },
		"change": func(x *Index) error {
			return x.change(context.Background(), newPlanner(0, 0, 0), func(*planner) error { panic("a mistake") })
		},
		"beside": func(x *Index) error {
			return x.engine.Load().call(context.Background(), func() { panic("a mistake") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := open(t, memOptions())
			put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 7), Names: chain(1, 7)})
			if err := harm(x); !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "a mistake") {
				t.Fatal(err)
			}
			if n, err := leading(x, keys(7)); n != 0 || !errors.Is(err, ErrBroken) {
				t.Error("probe: ", n, err)
			}
			if err := x.PutBatch(context.Background(), Batch{Segment: seg(1)}); !errors.Is(err, ErrBroken) {
				t.Error("put: ", err)
			}
			if err := x.Rebuild(context.Background(), each(Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 7), Names: chain(1, 7)})); err != nil {
				t.Fatal(err)
			}
			probe(t, x, 1, 7)
		})
	}
}

// hungDisk keeps writes of tables waiting.
type hungDisk struct {
	armed, release chan struct{}
}

func (*hungDisk) String() string { return "hung" }

func (h *hungDisk) MaybeError(op errorfs.Op) error {
	select {
	case <-h.armed:
		if opName(op.Kind) == "write" && strings.Contains(op.Path, ".sst") {
			<-h.release
		}
	default:
	}
	return nil
}

// TestHungDisk: a disk that does not answer holds up nobody for longer than they
// said, and no reader at all; Close gives up after CloseWait.
func TestHungDisk(t *testing.T) {
	h := &hungDisk{make(chan struct{}), make(chan struct{})}
	defer close(h.release)
	o := memOptions()
	o.fs, o.CloseWait = errorfs.Wrap(vfs.NewMem(), h), 200*time.Millisecond
	x := open(t, o)
	put(t, x, Batch{Segment: seg(1), Mark: 1, Blocks: stored(seg(1), 7), Names: chain(1, 7)})
	close(h.armed)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := x.Sync(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("sync: %v", err)
	}
	probe(t, x, 1, 7)
	if err := x.Close(); !errors.Is(err, ErrBroken) {
		t.Errorf("close: %v", err)
	}
}
