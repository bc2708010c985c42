package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

// find returns where a payload lies in bytes of a campaign: the block itself, or
// the plane of its noise, which no codec changes; negative when it is not there.
func find(all, p []byte) int {
	if off := bytes.Index(all, p); off >= 0 {
		return off
	}
	noise := make([]byte, min(len(p), 4096)/2)
	for i := range noise {
		noise[i] = p[2*i]
	}
	return bytes.Index(all, noise)
}

// where finds a payload in a file.
func where(t *testing.T, path string, p []byte) int64 {
	t.Helper()
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	off := find(all, p)
	if off < 0 {
		t.Fatal("the payload is not in the file")
	}
	return int64(off)
}

// TestDamageOfEachKind is found where it is, and repaired.
func TestDamageOfEachKind(t *testing.T) {
	size := func(t *testing.T, path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	for name, c := range map[string]struct {
		file    string
		off     func(t *testing.T, path string) int64
		kind    string
		blocks  int // lost at most
		headers bool
	}{
		"header page":   {sealedFile, func(*testing.T, string) int64 { return 30 }, segfile.BadHeader, 0, true},
		"reserved":      {sealedFile, func(*testing.T, string) int64 { return 2000 }, segfile.BadHeader, 0, true},
		"frame header":  {sealedFile, func(*testing.T, string) int64 { return 4096 + 17 }, segfile.BadFrame, 0, true},
		"frame table":   {sealedFile, func(*testing.T, string) int64 { return 4096 + 100 }, segfile.BadFrame, 0, true},
		"padding":       {sealedFile, func(*testing.T, string) int64 { return 4096 + 4000 }, segfile.BadPadding, 0, false},
		"payload":       {sealedFile, func(t *testing.T, p string) int64 { return where(t, p, payload(0, 5000)) + 99 }, segfile.BadPayload, 1, false},
		"footer":        {sealedFile, func(t *testing.T, p string) int64 { return size(t, p) - 300 }, segfile.BadFooter, 0, true},
		"trailer":       {sealedFile, func(t *testing.T, p string) int64 { return size(t, p) - 3 }, segfile.BadFooter, 0, true},
		"crashed frame": {crashedFile, func(*testing.T, string) int64 { return 4096 + 17 }, segfile.BadFrame, 1, true},
		"crashed block": {crashedFile, func(t *testing.T, p string) int64 { return where(t, p, payload(103, sizes[7]+7)) + 5 }, segfile.BadPayload, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := fill(t, dir)
			path := filepath.Join(dir, c.file)
			off := c.off(t, path)
			flip(t, path, off)
			damaged, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if r := check(t, options(dir), CheckOptions{}); r.Clean == c.headers {
				t.Errorf("a check of headers finds %+v", problems(r))
			}
			r := check(t, options(dir), CheckOptions{Payloads: true})
			found := problems(r)
			if len(found) == 0 || !slices.ContainsFunc(found, func(f Finding) bool {
				return f.Kind == c.kind && f.File == c.file && f.Offset <= off && off < f.Offset+f.Length && f.Remedy != ""
			}) {
				t.Fatalf("flip at %d: %+v", off, found)
			}
			if err := Repair(t.Context(), r, RepairOptions{}); err != nil {
				t.Fatal(err)
			}
			if r.Left != 0 || r.Repaired != len(found) || len(r.Repairs) != 1 || r.Repairs[0].Aside != c.file+".damaged" {
				t.Fatalf("%d left: %+v", r.Left, r.Repairs)
			}
			kept, err := os.ReadFile(path + ".damaged")
			if err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("the damaged file has changed: %v", err)
			}
			wantClean(t, "second check", dir)
			got := recoverAll(t, dir)
			blocks, names := wantRight(t, "after repair", d, got)
			if blocks > c.blocks || names > c.blocks || len(got.skipped) > 0 {
				t.Errorf("%d blocks and %d names lost, skipped %v", blocks, names, got.skipped)
			}
		})
	}
}

// TestTornTails: what a crash leaves is found and put in order, whatever it is.
func TestTornTails(t *testing.T) {
	for name, tail := range map[string][]byte{
		"garbage": []byte("garbage"), "page": bytes.Repeat([]byte{7}, 4096), "zeros": make([]byte, 8192), "frame": append([]byte("CFRM\x01\x00"), make([]byte, 5000)...),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := fill(t, dir)
			path := filepath.Join(dir, crashedFile)
			p, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, append(p, tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			r := check(t, options(dir), CheckOptions{})
			if got := problems(r); len(got) != 1 || got[0].Kind != segfile.BadTail || got[0].Offset != int64(len(p)) {
				t.Fatalf("%+v", got)
			}
			if err := Repair(t.Context(), r, RepairOptions{Delete: true}); err != nil || !r.Repairs[0].Deleted {
				t.Fatalf("%v, %+v", err, r.Repairs)
			}
			wantClean(t, "second check", dir)
			wantAll(t, "after repair", d, recoverAll(t, dir))
		})
	}
	dir := t.TempDir()
	d := fill(t, dir)
	for i, size := range []int{0, 100, 4096} { // as a power cut leaves files that were never fsync'ed
		path := filepath.Join(dir, fmt.Sprintf("rank001-0000000000002000/agg_rank001_%06d.bin", 50+i))
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := check(t, options(dir), CheckOptions{})
	if r.Problems < 3 {
		t.Fatalf("%+v", problems(r))
	}
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil {
		t.Fatal(err)
	}
	wantClean(t, "empty files", dir)
	wantAll(t, "empty files", d, recoverAll(t, dir))
}

// TestWrongName: a segment under another's name is moved aside as it is.
func TestWrongName(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	p, err := os.ReadFile(filepath.Join(dir, sealedFile))
	if err != nil {
		t.Fatal(err)
	}
	stray := "rank000-0000000000001000/agg_rank000_000060.bin"
	if err := os.WriteFile(filepath.Join(dir, stray), p, 0o600); err != nil {
		t.Fatal(err)
	}
	r := check(t, options(dir), CheckOptions{Payloads: true})
	if got := problems(r); len(got) != 1 || got[0].Kind != segfile.BadIdentity || got[0].File != stray {
		t.Fatalf("%+v", got)
	}
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || len(r.Repairs[0].Into) != 0 || r.Repairs[0].Aside != stray+".damaged" {
		t.Fatalf("%v, %+v", err, r.Repairs)
	}
	wantClean(t, "second check", dir)
	wantAll(t, "after repair", d, recoverAll(t, dir))
}

// TestRandomFlips: every flip is found, repair leaves nothing wrong, costs at
// most the blocks that were hit, and a second check is clean.
func TestRandomFlips(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	template := t.TempDir()
	d := fill(t, template)
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	for round := range rounds {
		dir := filepath.Join(t.TempDir(), "c")
		copyTree(t, template, dir)
		hit := map[string][]int64{}
		all := files(t, dir, "*.bin")
		flips := 1 + rng.IntN(12)
		for range flips {
			name := all[rng.IntN(len(all))]
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			off := rng.Int64N(info.Size())
			if slices.Contains(hit[name], off) {
				continue // it would undo the flip
			}
			hit[name] = append(hit[name], off)
			flip(t, filepath.Join(dir, name), off)
		}
		what := fmt.Sprintf("round %d, flips %v", round, hit)
		r := check(t, options(dir), CheckOptions{Payloads: true})
		for name, offs := range hit {
			for _, off := range offs {
				if !slices.ContainsFunc(problems(r), func(f Finding) bool { return f.File == name && f.Offset <= off && off < f.Offset+f.Length }) {
					t.Fatalf("%s: the flip at %d of %s was not found: %+v", what, off, name, problems(r))
				}
			}
		}
		if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left != 0 {
			t.Fatalf("%s: %v, %d left, %+v", what, err, r.Left, r.Repairs)
		}
		wantClean(t, what, dir)
		got := recoverAll(t, dir)
		blocks := wantBounded(t, what, d, got)
		if blocks > len(hit[crashedFile])*10+flips {
			t.Errorf("%s: %d blocks are lost by %d flips", what, blocks, flips)
		}
	}
}

// wantBounded is wantRight for damage that may have hit a withdrawal: then the
// name it withdrew is back.
func wantBounded(t *testing.T, what string, d *data, got recovered) int {
	t.Helper()
	for name := range d.gone {
		delete(got.names, name)
	}
	blocks, _ := wantRight(t, what, d, got)
	return blocks
}

// TestRepairFails at each operation: nothing that readers saw is lost, and the
// next repair ends well.
func TestRepairFails(t *testing.T) {
	template := t.TempDir()
	d := fill(t, template)
	flip(t, filepath.Join(template, sealedFile), 4096+17)
	for _, op := range []vfs.Op{vfs.OpMkdir, vfs.OpCreate, vfs.OpWrite, vfs.OpRename, vfs.OpSync, vfs.OpClose, vfs.OpRead} {
		for after := range 3 {
			what := fmt.Sprintf("%s %d fails", op, after)
			dir := filepath.Join(t.TempDir(), "c")
			copyTree(t, template, dir)
			o := options(dir)
			fs := vfstest.NewFault(vfs.OS{})
			o.FS = fs
			r := check(t, o, CheckOptions{})
			fs.Add(vfstest.Rule{Op: op, After: after, Err: vfs.ErrNoSpace, Bytes: 100})
			err := Repair(t.Context(), r, RepairOptions{})
			fs.Clear()
			if err != nil && !errors.Is(err, vfs.ErrNoSpace) {
				t.Fatalf("%s: %v", what, err)
			}
			if err != nil && r.Left == 0 {
				t.Errorf("%s: reported as repaired", what)
			}
			wantAll(t, what, d, recoverAll(t, dir))
			if tmp := files(t, dir, "*.part"); len(tmp) > 0 {
				t.Errorf("%s: left %v", what, tmp)
			}
			r = check(t, options(dir), CheckOptions{})
			if err := Repair(t.Context(), r, RepairOptions{}); err != nil {
				t.Fatalf("%s, then: %v", what, err)
			}
			wantClean(t, what, dir)
			wantAll(t, what+", then repaired", d, recoverAll(t, dir))
		}
	}
}

// TestRepairOrder is the sequence that docs/format.md asks for: rename before
// the first fsync, a footer only behind durable frames, and the damaged file
// moved aside last.
func TestRepairOrder(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	flip(t, filepath.Join(dir, crashedFile), 4096+17)
	o := options(dir)
	r := check(t, o, CheckOptions{})
	fs := vfstest.NewTrace(vfs.OS{}, dir)
	r.c.o.FS = fs
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.SplitSeq(fs.Take(), "\n") {
		if op, _, _ := strings.Cut(line, " "); !slices.Contains([]string{"open", "read", "size", "close"}, op) {
			got = append(got, op)
		}
	}
	if want := "mkdir create write rename sync write sync rename"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestNamesOfLostBlocksStay: they hide older records of the same name.
func TestNamesOfLostBlocksStay(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	old := startRank(t, dir, 0, 0x10, d)
	first := old.put(1, 5000, "a", 10)
	old.close()
	next := startRank(t, dir, 0, 0x20, d)
	p := payload(2, 6000)
	id := block.Sum(block.Bits128, p)
	name := block.Name{Namespace: "a", Key: "key-1", Seq: 20}
	if err := next.s.Put(t.Context(), tiers.Item{Info: block.Info{ID: id, Size: 6000, CRC: block.CRC(p)}, Data: p, Names: []block.Name{name}}); err != nil {
		t.Fatal(err)
	}
	next.close()
	path := filepath.Join(dir, "rank000-0000000000000020/agg_rank000_000000.bin")
	flip(t, path, where(t, path, p)+5)
	r := check(t, options(dir), CheckOptions{Payloads: true})
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Repairs[0].BlocksLost != 1 || r.Repairs[0].Names != 1 {
		t.Fatalf("%v, %+v", err, r.Repairs)
	}
	got := recoverAll(t, dir)
	if to, ok := got.names["a/key-1"]; ok || got.blocks[first] == nil {
		t.Errorf("the name leads to %v again, which was overwritten", to)
	}
}

// TestTenThousandFlips in 40 MiB: each is found at its place, nothing wrong is
// served before or after the repair, and a second check is clean.
func TestTenThousandFlips(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	s, err := segment.Open(segment.Options{Dir: dir, Rank: 4, Incarnation: 5, SegmentBytes: 4 << 20, CloseWait: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 128 {
		var items []tiers.Item
		for k := range 64 {
			p := payload(uint64(i*64+k), 5000)
			id := block.Sum(block.Bits128, p)
			key := fmt.Sprint(i*64 + k)
			d.blocks[id], d.names["n/"+key] = p, id
			items = append(items, tiers.Item{Info: block.Info{ID: id, Size: 5000, CRC: block.CRC(p)}, Data: p,
				Names: []block.Name{{Namespace: "n", Key: key, Seq: uint64(i + 1)}}})
		}
		if err := s.Put(t.Context(), items...); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	hit := flipMany(t, dir, 10000)
	r := check(t, options(dir), CheckOptions{Payloads: true})
	found := problems(r)
	for name, offs := range hit {
		for off := range offs {
			if !slices.ContainsFunc(found, func(f Finding) bool { return f.File == name && f.Offset <= off && off < f.Offset+f.Length }) {
				t.Fatalf("the flip at %d of %s was not found", off, name)
			}
		}
	}
	before, _ := wantRight(t, "before the repair", d, recoverAll(t, dir))
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left != 0 {
		t.Fatalf("%v, %d left", err, r.Left)
	}
	wantClean(t, "second check", dir)
	after, _ := wantRight(t, "after the repair", d, recoverAll(t, dir))
	if after > before {
		t.Errorf("%d of %d blocks are missing, %d were before the repair", after, len(d.blocks), before)
	}
	t.Logf("10000 flips, %d findings; of %d blocks %d were missing, after the repair %d", len(found), len(d.blocks), before, after)
}

// flipMany flips n different bits all over the segments and returns where.
func flipMany(t *testing.T, dir string, n int) map[string]map[int64]bool {
	t.Helper()
	rng := rand.New(rand.NewPCG(9, 10))
	all := files(t, dir, "*.bin")
	texts := make([][]byte, len(all))
	hit := map[string]map[int64]bool{}
	for i, name := range all {
		p, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		texts[i], hit[name] = p, map[int64]bool{}
	}
	for n > 0 {
		i := rng.IntN(len(all))
		off := rng.Int64N(int64(len(texts[i])))
		if !hit[all[i]][off] {
			hit[all[i]][off] = true
			texts[i][off] ^= 1 << rng.IntN(8)
			n--
		}
	}
	for i, name := range all {
		if err := os.WriteFile(filepath.Join(dir, name), texts[i], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return hit
}
