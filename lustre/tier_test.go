package lustre

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/tiertest"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

func TestConformance(t *testing.T) {
	small := int64(1 << 20)
	for name, o := range map[string]Options{
		"one segment":                     {},
		"many segments":                   {SegmentBytes: small},
		"many segments, encoded":          {SegmentBytes: small, Compress: true},
		"encoded, through the page cache": {Compress: true, Direct: segment.Off, Uring: segment.Off},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Run(t, tiertest.Config{
				Persistent: true,
				Corrupt:    corrupt,
				Torn:       torn,
				New: func(t *testing.T, dir string, _ int64) tiers.Tier {
					o.Dir, o.Rank, o.Process = dir, 3, lease.Killed()
					tr, err := Open(o)
					if err != nil {
						t.Fatal(err)
					}
					return tr
				},
			})
		})
	}
}

// corrupt flips a payload byte in the file.
func corrupt(t *testing.T, dir string, tr tiers.Tier, id block.ID) {
	p, err := tr.(*Tier).Segment(id)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, p.Path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, p.Offset); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b, p.Offset); err != nil {
		t.Fatal(err)
	}
}

// torn adds half a frame to every segment: a copy of its first frame's start.
func torn(t *testing.T, dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, "rank003-*", "agg_rank003_*.bin"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("segments: %v, %v", paths, err)
	}
	for _, path := range paths {
		p, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(p, p[4096:4096+6000]...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestErrorsSayWhatHappened(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: filepath.Join(dir, "below")})
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v does not name the path", err)
	}
}

// TestBusyIsVisible: the owner of memory learns through the tier's error when
// the kernel has let go of it.
func TestBusyIsVisible(t *testing.T) {
	fs := vfstest.NewFault(vfs.OS{})
	tr, err := Open(Options{Dir: t.TempDir(), FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	data := make([]byte, 9000)
	info := block.Info{ID: block.Sum(block.Bits128, data), Size: 9000, CRC: block.CRC(data)}
	if err := tr.Put(t.Context(), tiers.Item{Info: info, Data: data}); err != nil {
		t.Fatal(err)
	}
	p, err := tr.Pin(info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	server := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: server})
	ctx := fs.UntilHung(t.Context(), 1)
	err = p.ReadInto(ctx, make([]byte, 9000))
	var busy *Busy
	if !errors.As(err, &busy) || !errors.Is(err, tiers.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	close(server)
	<-busy.Done()
	if err := p.ReadInto(t.Context(), make([]byte, 9000)); err != nil {
		t.Errorf("ReadInto once the server is back: %v", err)
	}
}
