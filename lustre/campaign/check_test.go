package campaign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/vfstest"
	"cascadekv/internal/vfs"
	"cascadekv/lustre/campaign/segfile"
	"cascadekv/lustre/segment"
	"cascadekv/lustre/segment/lease"
	"cascadekv/tiers"
)

const (
	sealedFile  = "rank000-0000000000001000/agg_rank000_000000.bin"
	crashedFile = "rank001-0000000000002000/agg_rank001_000000.bin"
)

func TestCleanCampaign(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	for name, how := range map[string]CheckOptions{"headers": {}, "payloads": {Payloads: true}, "ids": {IDs: true}} {
		r := check(t, options(dir), how)
		if !r.Clean || len(r.Findings) != 0 || r.Totals.Distinct != len(d.blocks) || r.Totals.LiveNames != len(d.names) {
			t.Errorf("%s: %+v, findings %+v", name, r.Totals, problems(r))
		}
	}
	wantAll(t, "as written", d, recoverAll(t, dir))
	var done int64
	o := options(dir)
	o.Progress = func(n, total int64) {
		if n < done || n > total {
			t.Errorf("progress %d after %d of %d", n, done, total)
		}
		done = n
	}
	if r := check(t, o, CheckOptions{Payloads: true}); done == 0 || done > r.Totals.Bytes {
		t.Errorf("progress ends at %d of %d", done, r.Totals.Bytes)
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	l, err := List(t.Context(), options(dir), -1)
	if err != nil {
		t.Fatal(err)
	}
	live, total := int64(0), 0
	there := recoverAll(t, dir)
	for _, id := range d.names {
		live += there.stored[id]
	}
	for _, p := range d.blocks {
		total += len(p)
	}
	if l.Totals.LiveBytes != live || int(l.Totals.BlockBytes) != total || l.Totals.Payload > l.Totals.BlockBytes*9/10 || l.Totals.LiveNames != len(d.names) || l.Totals.Blocks != len(d.blocks) || l.Totals.Ranks != 2 {
		t.Errorf("%+v, want %d bytes and %d names live", l.Totals, live, len(d.names))
	}
	spaces := map[string]Namespace{}
	for name, id := range d.names {
		ns, _, _ := strings.Cut(name, "/")
		n := spaces[ns]
		spaces[ns] = Namespace{Name: ns, Names: n.Names + 1, BytesReferenced: n.BytesReferenced + int64(len(d.blocks[id]))}
	}
	for _, n := range l.Namespaces {
		if n != spaces[n.Name] {
			t.Errorf("namespace %+v, want %+v", n, spaces[n.Name])
		}
	}
	if len(l.Namespaces) != len(spaces) || len(spaces) < 2 || !slices.IsSortedFunc(l.Namespaces, func(a, b Namespace) int { return strings.Compare(a.Name, b.Name) }) {
		t.Errorf("namespaces %+v, want %+v", l.Namespaces, spaces)
	}
	states := map[segfile.State]int{}
	for _, s := range l.Segments {
		states[s.State]++
		if s.Writer || s.Created.IsZero() {
			t.Errorf("%+v", s)
		}
	}
	if states[segfile.StateOpen] != 1 || states[segfile.StateSealed] < 2 {
		t.Errorf("states %v", states)
	}
	one, err := List(t.Context(), options(dir), 1)
	if err != nil || len(one.Segments) != 1 || one.Segments[0].Path != crashedFile || one.Segments[0].LiveNames != 10 {
		t.Errorf("rank 1: %+v, %v", one, err)
	}
	if _, err := List(t.Context(), options(filepath.Join(dir, "none")), -1); !errors.Is(err, ErrNoCampaign) {
		t.Errorf("no directory: %v", err)
	}
}

// TestRuns: the list tells who owns what, and a segment whose owner lives has a
// writer though it did not change for long.
func TestRuns(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	startRank(t, dir, 0, 0x10, d).close()
	first := startRank(t, dir, 1, 0x20, d)
	first.put(1, 5000, "a", 1)
	first.close()
	live := startRankAs(t, lease.Self(), dir, 1, 0x30, d)
	if err := live.s.Recover(func(tiers.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	live.put(2, 5000, "b", 2)
	now := time.Now()
	o := Options{Dir: dir, Quiet: time.Nanosecond, Writers: func() map[string]bool { return nil }, Now: func() time.Time { return now.Add(time.Minute) }}
	l, err := List(t.Context(), o, -1)
	if err != nil || len(l.Runs) != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	for _, r := range l.Runs {
		if r.Owner != "0000000000000030" || r.Life != lease.LifeAlive || r.Process != uint64(os.Getpid()) || r.Host == "" || r.Renewed.IsZero() {
			t.Errorf("%+v", r)
		}
	}
	if !l.Segments[1].Writer || l.Segments[0].Writer {
		t.Errorf("writers: of the sealed one %v, of the other %v", l.Segments[0].Writer, l.Segments[1].Writer)
	}
	live.close()
	if l, err = List(t.Context(), o, 1); err != nil || len(l.Runs) != 2 || l.Runs[0].Life != lease.LifeClosed || l.Runs[1].Life != lease.LifeClosed {
		t.Errorf("after the end: %+v, %v", l.Runs, err)
	}
	if l, err = List(t.Context(), o, 0); err != nil || len(l.Runs) != 0 {
		t.Errorf("rank 0: %+v, %v", l.Runs, err)
	}
}

// TestInheritedRuns: what a run of another number inherited is that one's for as
// long as its own token says so.
func TestInheritedRuns(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	left := startRank(t, dir, 1, 0x20, d)
	left.put(1, 5000, "a", 1)
	left.close()
	var late atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
	elsewhere := lease.Self() // so that only its token differs
	elsewhere.Boot[0] ^= 0xff
	s, err := segment.Open(segment.Options{Dir: dir, Rank: 2, Incarnation: 0x30, Process: elsewhere, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	heir := &rank{t, s, d}
	heir.put(2, 5000, "b", 2)
	if ok, err := s.AdoptOrphan(t.Context(), tiers.Part{Rank: 1, Incarnation: 0x20}, func(tiers.Entry) error { return nil }); !ok || err != nil {
		t.Fatal(ok, err)
	}
	late.Store(int64(50 * time.Minute))
	heir.put(3, 5000, "b", 3) // after it has renewed its own token
	late.Store(int64(90 * time.Minute))
	l, err := List(t.Context(), Options{Dir: dir, Now: now}, -1)
	if err != nil || len(l.Runs) != 2 {
		t.Fatalf("%+v, %v", l, err)
	}
	for _, r := range l.Runs {
		if r.Owner != "0000000000000030" || r.Life != lease.LifeAlive || !r.Renewed.After(time.Now().Add(40*time.Minute)) {
			t.Errorf("%+v", r)
		}
	}
}

// TestLitter: what lies about besides segments is told and harms nobody.
func TestLitter(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{
		"README", "rank000-0000000000001000/notes", "rank000-0000000000001000/agg_rank001_000000.bin",
		"rank000-0000000000001000/agg_rank000_000077.bin.tmp", "rank000-0000000000001000/agg_rank000_000078.bin.part", "rank001-0000000000002000/agg_rank001_000005.bin.damaged",
	} {
		if err := os.WriteFile(in(name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(in("rank1-5"), 0o700), os.Mkdir(in("rank002-0000000000001000"), 0o700), os.Symlink(in(sealedFile), in("rank000-0000000000001000/agg_rank000_000088.bin"))); err != nil {
		t.Fatal(err)
	}
	r := check(t, options(dir), CheckOptions{Payloads: true})
	kinds := map[string]int{}
	for _, f := range r.Findings {
		kinds[f.Kind]++
	}
	if !r.Clean || kinds[KindForeign] != 5 || kinds[KindTemp] != 2 || kinds[KindAside] != 1 || kinds[KindTwins] != 1 {
		t.Errorf("%v, problems %+v", kinds, problems(r))
	}
	if err := Repair(t.Context(), r, RepairOptions{Delete: true}); err != nil {
		t.Fatal(err)
	}
	if got := append(files(t, dir, "*.[tp]*"), files(t, dir, "*.damaged")...); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	if got := files(t, dir, "notes"); len(got) != 1 {
		t.Error("what is not ours was removed")
	}
	if blocks, names := wantRight(t, "after the clean-up", d, recoverAll(t, dir)); blocks+names > 0 {
		t.Errorf("%d blocks and %d names are missing", blocks, names)
	}
}

func TestModes(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	open := filepath.Join(dir, sealedFile)
	if err := errors.Join(os.Chmod(open, 0o644), os.Chmod(filepath.Dir(open), 0o755)); err != nil {
		t.Fatal(err)
	}
	r := check(t, options(dir), CheckOptions{})
	if got := problems(r); len(got) != 2 || got[0].Kind != KindMode || got[1].Kind != KindMode {
		t.Fatalf("%+v", got)
	}
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left != 0 || r.Repaired != 2 {
		t.Fatalf("%v, %+v", err, r)
	}
	wantClean(t, "after chmod", dir)
}

// TestUnreadable: an error of the file system is a finding, and is not
// repaired.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	d := fill(t, dir)
	flip(t, filepath.Join(dir, sealedFile), 5000)
	before := files(t, dir, "*")
	o := options(dir)
	fs := vfstest.NewFault(vfs.OS{})
	o.FS = fs
	for op, path := range map[vfs.Op]string{vfs.OpOpen: sealedFile, vfs.OpRead: sealedFile, vfs.OpReadDir: "rank000"} {
		fs.Clear()
		fs.Add(vfstest.Rule{Op: op, Path: path, Err: vfs.ErrIO})
		r := check(t, o, CheckOptions{Payloads: true})
		if got := problems(r); len(got) != 1 || got[0].Kind != KindUnreadable {
			t.Errorf("%s: %+v", op, got)
		}
		if err := Repair(t.Context(), r, RepairOptions{Force: true, Delete: true}); err != nil || r.Left != 1 {
			t.Errorf("%s: %v, %d left", op, err, r.Left)
		}
	}
	fs.Clear()
	fs.Add(vfstest.Rule{Op: vfs.OpReadDir, Err: vfs.ErrIO})
	if _, err := Check(t.Context(), o, CheckOptions{}); !errors.Is(err, ErrNoCampaign) {
		t.Errorf("no list of the campaign: %v", err)
	}
	if got := files(t, dir, "*"); !slices.Equal(got, before) {
		t.Errorf("files %v, before %v", got, before)
	}
	wantRight(t, "unreadable", d, recoverAll(t, dir))
}

// TestWriterIsLeftAlone: what may be written to is only read.
func TestWriterIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	live := startRank(t, dir, 0, 0x10, d)
	for i := range uint64(4) {
		live.put(i, 5000, "a", i+1)
	}
	name := "rank000-0000000000000010/agg_rank000_000000.bin"
	flip(t, filepath.Join(dir, name), 4096+40) // frame 0: proven durable by the later ones
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	size, _ := f.Seek(0, 2)
	if _, err := f.WriteAt([]byte("a write that is under way"), size); err != nil {
		t.Fatal(err)
	}
	repair := func(o Options, force bool) *Report {
		r := check(t, o, CheckOptions{Payloads: true})
		if err := Repair(t.Context(), r, RepairOptions{Force: force}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	recent := Options{Dir: dir, Writers: func() map[string]bool { return nil }}
	if r := repair(recent, false); r.Left != 1 || r.Repairs[0].Skipped == "" || r.Findings[len(r.Findings)-1].Severity != Note {
		t.Errorf("changed a moment ago: %+v, %+v", r.Repairs, problems(r))
	}
	here := Options{Dir: dir, Now: func() time.Time { return later }} // finds the descriptor in /proc
	if r := repair(here, true); r.Left == 0 || !strings.Contains(r.Repairs[0].Skipped, "open for writing") {
		t.Errorf("open here: %+v", r.Repairs)
	}
	if got := files(t, dir, "agg*"); len(got) != 1 {
		t.Errorf("something was made: %v", got)
	}
	f.Close()
	live.s.Close()
}

// TestConflict: of two blocks with one id the one whose bytes are right stays.
func TestConflict(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	a := startRank(t, dir, 0, 0x10, d)
	id := a.put(1, 5000, "a", 1)
	a.close()
	b := startRank(t, dir, 1, 0x20, newData())
	wrong := payload(2, 5000)
	if err := b.s.Put(t.Context(), tiers.Item{Info: block.Info{ID: id, Size: 5000, CRC: block.CRC(wrong)}, Data: wrong}); err != nil {
		t.Fatal(err)
	}
	b.put(3, 600, "b", 3)
	b.close()
	d.blocks[block.Sum(block.Bits128, payload(3, 600))], d.names["b/key-3"] = payload(3, 600), block.Sum(block.Bits128, payload(3, 600))
	r := check(t, options(dir), CheckOptions{})
	if got := problems(r); len(got) != 2 || got[0].Kind != KindConflict {
		t.Fatalf("%+v", got)
	}
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Left != 0 {
		t.Fatalf("%v, %+v", err, r.Repairs)
	}
	wantClean(t, "after repair", dir)
	wantAll(t, "after repair", d, recoverAll(t, dir))
}

// TestUnknownCodecs: blocks that a newer program stored are noted, and neither
// deleted nor changed; a repair of what is damaged beside them takes them along
// as they are.
func TestUnknownCodecs(t *testing.T) {
	dir := t.TempDir()
	r := startRank(t, dir, 0, 0x10, newData())
	r.put(0, 9000, "a", 1)
	path := filepath.Join(dir, files(t, dir, "*")[0])
	p, err := os.ReadFile(path) // before there is a footer
	if err != nil {
		t.Fatal(err)
	}
	frame := p[4096:]
	frame[128+72] = 99
	head := binary.LittleEndian.Uint32(frame[8:])
	binary.LittleEndian.PutUint32(frame[60:], block.ExtendCRC(block.CRC(frame[:60]), frame[64:head]))
	r.put(1, 5000, "a", 2)
	r.close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	footer := len(whole) - 4096
	whole = append(p, whole[len(p):footer]...) // as of a rank that was killed
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	report := check(t, options(dir), CheckOptions{IDs: true})
	if len(problems(report)) != 0 || report.Notes != 1 || report.Findings[0].Kind != KindUnknown || report.NoID != 1 {
		t.Fatalf("%+v", report.Findings)
	}
	if err := Repair(t.Context(), report, RepairOptions{Force: true, Delete: true}); err != nil {
		t.Fatal(err)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, whole) {
		t.Errorf("the file has changed, %v", err)
	}
	flip(t, path, int64(footer)-2000) // what a crash may have left of the last block
	report = check(t, options(dir), CheckOptions{Payloads: true})
	if err := Repair(t.Context(), report, RepairOptions{Force: true, Delete: true}); err != nil || report.Left != 0 {
		t.Fatalf("%v, %+v", err, report.Findings)
	}
	report = check(t, options(dir), CheckOptions{IDs: true})
	if report.Totals.Blocks != 1 || len(problems(report)) != 0 || report.NoID != 1 {
		t.Errorf("%+v, %+v", report.Totals, report.Findings)
	}
}
