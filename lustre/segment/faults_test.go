package segment

import (
	"context"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment/breaker"
	"cascadekv/tiers"
)

// TestReadErrorsAreCounted: each way to read counts what its caller is told, once,
// under its kind.
func TestReadErrorsAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want tiers.ReadErrors
	}{
		"a short file":     {io.ErrUnexpectedEOF, tiers.ReadErrors{Corrupt: 1}},
		"a file gone":      {os.ErrNotExist, tiers.ReadErrors{Gone: 1}},
		"a stale handle":   {vfs.ErrStale, tiers.ReadErrors{Gone: 1}},
		"a server away":    {syscall.ESHUTDOWN, tiers.ReadErrors{Unanswered: 1}},
		"time out":         {syscall.ETIMEDOUT, tiers.ReadErrors{Unanswered: 1}},
		"EIO":              {syscall.EIO, tiers.ReadErrors{Failed: 1}},
		"all is well":      {nil, tiers.ReadErrors{}},
		"who reads leaves": {context.Canceled, tiers.ReadErrors{}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []string{"reference", "place", "batch"} {
				s, fs, _ := faulty(t, nil)
				it := testItem(1, 9000)
				put(t, s, it)
				place, dst := placeOf(t, s, it), make([]byte, 9000)
				ref, err := s.Pin(it.Info.ID)
				if err != nil {
					t.Fatal(err)
				}
				if c.err != nil {
					fs.Add(vfstest.Rule{Op: vfs.OpRead, Err: c.err})
				}
				switch way {
				case "reference":
					err = ref.ReadInto(t.Context(), dst)
				case "place":
					err = s.ReadSegment(t.Context(), place, it.Info, dst)
				case "batch":
					err = s.ReadBatch(t.Context(), []tiers.Read{{Pin: ref, Dst: dst}})[0]
				}
				ref.Release()
				if got := s.Health().Reads; got != c.want || (err == nil) != (c.err == nil) {
					t.Errorf("%s: %v; counted %+v, want %+v", way, err, got, c.want)
				}
			}
		})
	}
}

// TestWrongBytesAreCounted: damage is counted by whom it meets, a merge too.
func TestWrongBytesAreCounted(t *testing.T) {
	s := openStore(t, small(t.TempDir(), 1))
	kept := evictSome(t, s, populate(t, s, 30))
	for i, it := range kept[:2] {
		path, off := s.where(t, it.Info.ID)
		p := readFile(t, path)
		p[off+77] ^= 4
		writeFile(t, p, path)
		if i == 0 {
			_, err := read(t.Context(), s, it)
			wantErr(t, "read", err, tiers.ErrCorrupt)
		} else {
			merged(t, s, 0)
		}
		if got, want := s.Health().Reads, (tiers.ReadErrors{Corrupt: uint64(i + 1)}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	}
}

// TestUnansweredReadsAreCounted: those that end at their deadline, and those that
// are not tried any more.
func TestUnansweredReadsAreCounted(t *testing.T) {
	s, fs, items := spread(t, 1, nil)
	server := make(chan struct{})
	defer close(server)
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: server})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := read(ctx, s, items[0])
	wantErr(t, "read", err, context.DeadlineExceeded)
	errs := s.ReadBatch(ctx, readsOf(t, s, items))
	wantErr(t, "batch", errs[0], tiers.ErrUnavailable)
	s.faults.count(unavailable("read", &breaker.Refusal{What: "a file", Failures: breaker.BreakAfter}))
	if got, want := s.Health().Reads, (tiers.ReadErrors{Unanswered: 3}); got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
}
