package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/noise"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

// later is when the tests look at what was written just now, so that nothing
// seems to have a writer.
var later = time.Now().Add(100 * time.Hour)

func options(dir string) Options {
	return Options{Dir: dir, Now: func() time.Time { return later }, Writers: func() map[string]bool { return nil }, Jobs: 2}
}

// data is what a test put into a campaign.
type data struct {
	blocks map[block.ID][]byte
	names  map[string]block.ID // namespace/key
	gone   map[string]bool     // withdrawn
}

func newData() *data {
	return &data{map[block.ID][]byte{}, map[string]block.ID{}, map[string]bool{}}
}

func payload(seed uint64, size int) []byte {
	p := noise.Bytes(seed, size)
	for i := 1; i < size && seed%4 != 3; i += 2 {
		p[i] = 0x3f // a codec can halve it
	}
	return p
}

var sizes = []int{5000, 28, 0, 513, 9000, 4096, 70000, 200000}

// rank is a store that fills a campaign.
type rank struct {
	t *testing.T
	s *segment.Store
	d *data
}

// startRank starts one whose process is gone: what it does not close counts as
// left by a crash.
func startRank(t *testing.T, dir string, number uint32, incarnation uint64, d *data) *rank {
	t.Helper()
	return startRankAs(t, lease.Killed(), dir, number, incarnation, d)
}

func startRankAs(t *testing.T, p lease.Process, dir string, number uint32, incarnation uint64, d *data) *rank {
	t.Helper()
	s, err := segment.Open(segment.Options{Dir: dir, Rank: number, Incarnation: incarnation, CloseWait: 5 * time.Second, SegmentBytes: 400 << 10, Compress: true, Process: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &rank{t, s, d}
}

func (r *rank) put(seed uint64, size int, ns string, seq uint64) block.ID {
	r.t.Helper()
	p := payload(seed, size)
	id := block.Sum(block.Bits128, p)
	key := fmt.Sprintf("key-%d", seed)
	it := tiers.Item{Info: block.Info{ID: id, Size: int64(size), CRC: block.CRC(p)}, Data: p,
		Names: []block.Name{{Namespace: ns, Key: key, Depth: 1, Parent: "up", Seq: seq}}}
	if err := r.s.Put(context.Background(), it); err != nil {
		r.t.Fatal(err)
	}
	r.d.blocks[id], r.d.names[ns+"/"+key] = p, id
	return id
}

func (r *rank) drop(ns, key string, seq uint64) {
	r.t.Helper()
	if err := errors.Join(r.s.Unlink(block.ID{}, block.Name{Namespace: ns, Key: key, Seq: seq}), r.s.Sync(context.Background())); err != nil {
		r.t.Fatal(err)
	}
	delete(r.d.names, ns+"/"+key)
	r.d.gone[ns+"/"+key] = true
}

func (r *rank) close() {
	r.t.Helper()
	if err := r.s.Close(); err != nil {
		r.t.Fatal(err)
	}
}

// fill makes a campaign of two ranks: several sealed segments of rank 0 and a
// crashed one of rank 1.
func fill(t *testing.T, dir string) *data {
	t.Helper()
	d := newData()
	r := startRank(t, dir, 0, 0x1000, d)
	for i := range uint64(24) {
		r.put(i, sizes[i%uint64(len(sizes))]+int(i/8), "a", 100+i)
	}
	r.drop("a", "key-3", 500)
	r.close()
	crashed := startRank(t, filepath.Join(dir), 1, 0x2000, d)
	for i := uint64(100); i < 110; i++ {
		crashed.put(i, sizes[i%uint64(len(sizes))]+7, "b", 1000+i)
	}
	crashed.drop("a", "key-4", 2000)
	// What a crash leaves is what lies there before Close.
	left := filepath.Join(dir, "rank001-0000000000002000")
	copies := filepath.Join(t.TempDir(), "copy")
	copyTree(t, left, copies)
	crashed.s.Close()
	if err := os.RemoveAll(left); err != nil {
		t.Fatal(err)
	}
	copyTree(t, copies, left)
	return d
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	err := filepath.Walk(to, func(path string, info os.FileInfo, err error) error {
		switch {
		case err != nil:
			return err
		case info.IsDir():
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// recovered is what a rank that starts on the campaign can serve.
type recovered struct {
	blocks  map[block.ID][]byte
	names   map[string]block.ID
	skipped []error
	stored  map[block.ID]int64
}

func recoverAll(t *testing.T, dir string) recovered {
	t.Helper()
	s, err := segment.Open(segment.Options{Dir: dir, Rank: 9, CloseWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out := recovered{blocks: map[block.ID][]byte{}, names: map[string]block.ID{}, stored: map[block.ID]int64{}}
	var ids []block.Info
	err = s.Recover(func(f tiers.Entry) error {
		if !f.Info.ID.IsZero() {
			ids = append(ids, f.Info)
		}
		for _, n := range f.Names {
			out.names[n.Namespace+"/"+n.Key] = f.Info.ID
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range ids {
		out.stored[info.ID] = s.StoredSize(info)
		ref, err := s.Pin(info.ID)
		if err != nil {
			t.Fatal(err)
		}
		dst := make([]byte, info.Size)
		err = ref.ReadInto(context.Background(), dst)
		ref.Release()
		if err == nil {
			out.blocks[info.ID] = dst
		} else if !errors.Is(err, tiers.ErrCorrupt) {
			t.Fatal(err)
		}
	}
	out.skipped = s.Skipped()
	return out
}

// wantRight fails for anything that was never stored, and returns how many
// blocks and names of d are missing.
func wantRight(t *testing.T, what string, d *data, got recovered) (blocks, names int) {
	t.Helper()
	for id, p := range got.blocks {
		if want, ok := d.blocks[id]; !ok || !bytes.Equal(p, want) {
			t.Fatalf("%s: wrong bytes of block %v", what, id)
		}
	}
	for name, id := range got.names {
		if d.names[name] != id {
			t.Fatalf("%s: %s leads to %v, want %v (withdrawn: %v)", what, name, id, d.names[name], d.gone[name])
		}
	}
	for id := range d.blocks {
		if _, ok := got.blocks[id]; !ok {
			blocks++
		}
	}
	for name := range d.names {
		if _, ok := got.names[name]; !ok {
			names++
		}
	}
	return blocks, names
}

func wantAll(t *testing.T, what string, d *data, got recovered) {
	t.Helper()
	if blocks, names := wantRight(t, what, d, got); blocks+names+len(got.skipped) > 0 {
		t.Fatalf("%s: %d blocks and %d names are missing, skipped %v", what, blocks, names, got.skipped)
	}
}

func check(t *testing.T, o Options, how CheckOptions) *Report {
	t.Helper()
	r, err := Check(t.Context(), o, how)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func problems(r *Report) (out []Finding) {
	for _, f := range r.Findings {
		if f.Severity == Problem {
			out = append(out, *f)
		}
	}
	return out
}

// wantClean fails when a thorough check finds a problem.
func wantClean(t *testing.T, what string, dir string) *Report {
	t.Helper()
	r := check(t, options(dir), CheckOptions{Payloads: true, IDs: true})
	if !r.Clean {
		t.Fatalf("%s: %+v", what, problems(r))
	}
	return r
}

// files lists everything below dir, relative to it.
func files(t *testing.T, dir string, match string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", match))
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = strings.TrimPrefix(all[i], dir+"/")
	}
	slices.Sort(all)
	return all
}

func flip(t *testing.T, path string, off int64) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p[off] ^= 1 << (off % 8)
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
}
