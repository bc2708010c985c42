package campaign

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
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
	"cascadekv/lustre/segment"
	"cascadekv/tiers"
)

func export(t testing.TB, o Options, what ExportOptions) ([]byte, *Exported) {
	t.Helper()
	var out bytes.Buffer
	x, err := Export(context.Background(), o, &out, what)
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), x
}

func imported(t *testing.T, dir string, stream []byte) (*Imported, error) {
	t.Helper()
	return Import(t.Context(), options(dir), bytes.NewReader(stream), ImportOptions{IDs: true})
}

func TestExportImport(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new", "campaign")
	d := fill(t, from)
	var last, total int64
	o := options(from)
	o.Progress = func(done, all int64) {
		if done < last || done > all {
			t.Errorf("progress %d after %d of %d", done, last, all)
		}
		last, total = done, all
	}
	stream, x := export(t, o, ExportOptions{Program: "test"})
	if last == 0 || last != total {
		t.Errorf("progress ends at %d of %d", last, total)
	}
	if x.Blocks != len(d.blocks) || x.Damaged != 0 || len(x.LeftOut) != 0 {
		t.Errorf("%+v", x)
	}
	for round := range 2 { // the second time every incarnation is there already
		got, err := imported(t, to, stream)
		if err != nil || !got.Complete || got.Segments != x.Segments || got.Blocks != x.Blocks || got.Names != x.Names || got.Bytes != x.Bytes || len(got.Into) != 2 {
			t.Fatalf("round %d: %v, %+v, exported %+v", round, err, got, x)
		}
		wantClean(t, "imported", to)
		wantAll(t, "imported", d, recoverAll(t, to))
		if dirs, _ := filepath.Glob(to + "/*"); len(dirs) != 2*(round+1) {
			t.Errorf("round %d: %v", round, dirs)
		}
	}
	again, x2 := export(t, options(to), ExportOptions{Program: "test"})
	if x2.Blocks != x.Blocks || len(again) == 0 {
		t.Errorf("an export of the copy has %+v, of the original %+v", x2, x)
	}
}

func TestExportChooses(t *testing.T) {
	dir := t.TempDir()
	d := newData()
	r := startRank(t, dir, 0, 0x10, d)
	start := time.Now()
	seq := func(i int) uint64 { return uint64(start.Add(time.Duration(i) * time.Minute).UnixNano()) }
	for i := range 6 {
		r.put(uint64(i), 5000+i, "a", seq(i))
		r.put(uint64(20+i), 300+i, "b", seq(i))
	}
	newer := payload(50, 700)
	id := block.Sum(block.Bits128, newer)
	if err := r.s.Put(t.Context(), tiers.Item{Info: block.Info{ID: id, Size: 700, CRC: block.CRC(newer)}, Data: newer,
		Names: []block.Name{{Namespace: "a", Key: "key-0", Seq: seq(10)}, {Namespace: "a", Key: "short", Seq: seq(1), Expires: start.Add(time.Hour)}}}); err != nil {
		t.Fatal(err)
	}
	r.drop("a", "key-1", seq(11))
	r.close()
	stay := func(names ...string) *data {
		out := newData()
		for _, n := range names {
			to := d.names[n]
			if n == "a/key-0" {
				to = id
			}
			p := d.blocks[to]
			if to == id {
				p = newer
			}
			out.names[n], out.blocks[to] = to, p
		}
		return out
	}
	for name, c := range map[string]struct {
		what ExportOptions
		want *data
	}{
		"namespace":      {ExportOptions{Namespaces: []string{"b"}}, stay("b/key-20", "b/key-21", "b/key-22", "b/key-23", "b/key-24", "b/key-25")},
		"newer":          {ExportOptions{NewerThan: start.Add(4 * time.Minute)}, stay("a/key-4", "a/key-5", "b/key-24", "b/key-25", "a/key-0")},
		"live":           {ExportOptions{Live: true, Namespaces: []string{"a"}}, stay("a/key-0", "a/key-2", "a/key-3", "a/key-4", "a/key-5")},
		"newer live b":   {ExportOptions{Live: true, Namespaces: []string{"b"}, NewerThan: start.Add(5 * time.Minute)}, stay("b/key-25")},
		"nothing at all": {ExportOptions{Namespaces: []string{"c"}}, newData()},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			stream, _ := export(t, options(dir), c.what)
			got, err := imported(t, to, stream)
			if err != nil || !got.Complete {
				t.Fatalf("%v, %+v", err, got)
			}
			wantClean(t, name, to)
			there := recoverAll(t, to)
			wantAll(t, name, c.want, there)
			if !slices.Equal(sorted(there.names), sorted(c.want.names)) {
				t.Errorf("names %v", sorted(there.names))
			}
		})
	}
}

func sorted(m map[string]block.ID) []string { return slices.Sorted(maps.Keys(m)) }

// TestExportLeavesDamageBehind.
func TestExportLeavesDamageBehind(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	d := fill(t, from)
	path := filepath.Join(from, sealedFile)
	flip(t, path, where(t, path, payload(0, 5000))+5)
	stream, x := export(t, options(from), ExportOptions{})
	if x.Damaged != 1 || x.Blocks != len(d.blocks)-1 {
		t.Errorf("%+v", x)
	}
	if got, err := imported(t, to, stream); err != nil || !got.Complete {
		t.Fatalf("%v, %+v", err, got)
	}
	wantClean(t, "imported", to)
	if blocks, names := wantRight(t, "imported", d, recoverAll(t, to)); blocks != 1 || names != 1 {
		t.Errorf("%d blocks and %d names are missing", blocks, names)
	}
	o := options(from)
	fs := vfstest.NewFault(vfs.OS{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Path: "rank001", Err: vfs.ErrIO})
	o.FS = fs
	if _, x := export(t, o, ExportOptions{}); len(x.LeftOut) != 1 {
		t.Errorf("an unreadable segment: %+v", x)
	}
}

// TestImportOfACutStream keeps whole segments and nothing else.
func TestImportOfACutStream(t *testing.T) {
	from := t.TempDir()
	d := fill(t, from)
	stream, x := export(t, options(from), ExportOptions{})
	rng := rand.New(rand.NewPCG(5, 6))
	most := 0
	for round := range 40 {
		cut := rng.IntN(len(stream) - 1024) // the last kilobyte only marks the end of a tar file
		if round < 6 {
			cut = round * 300
		}
		to := t.TempDir()
		got, err := imported(t, to, stream[:cut])
		if !errors.Is(err, ErrCutOff) || got.Complete {
			t.Fatalf("cut at %d: %v, %+v", cut, err, got)
		}
		if n := len(files(t, to, "*")); n != got.Segments || len(files(t, to, "*.bin")) != n {
			t.Errorf("cut at %d: %d files, %d segments", cut, n, got.Segments)
		}
		wantClean(t, "cut", to)
		missing := len(d.blocks) - len(recoverAll(t, to).blocks)
		if missing != len(d.blocks)-got.Blocks {
			t.Errorf("cut at %d: %d blocks are missing, %d were reported", cut, missing, got.Blocks)
		}
		most = max(most, got.Segments)
	}
	if most == 0 || x.Segments < 3 {
		t.Errorf("at most %d of %d segments came through", most, x.Segments)
	}
}

// TestImportOfAFlippedStream takes nothing that is wrong.
func TestImportOfAFlippedStream(t *testing.T) {
	from := t.TempDir()
	d := fill(t, from)
	stream, _ := export(t, options(from), ExportOptions{})
	rng := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		bad := bytes.Clone(stream)
		off := rng.IntN(len(bad))
		bad[off] ^= 1 << rng.IntN(8)
		to := t.TempDir()
		got, err := imported(t, to, bad)
		if err != nil && !errors.Is(err, ErrBadStream) && !errors.Is(err, ErrCutOff) {
			t.Fatalf("flip at %d: %v", off, err)
		}
		if got.Complete && len(recoverAll(t, to).blocks) != len(d.blocks) {
			t.Errorf("flip at %d: complete, with %+v", off, got)
		}
		wantClean(t, fmt.Sprintf("flip at %d", off), to)
		wantBounded(t, fmt.Sprintf("flip at %d", off), d, recoverAll(t, to))
		if n := len(files(t, to, "*")); n != got.Segments {
			t.Errorf("flip at %d: %d files, %d segments", off, n, got.Segments)
		}
	}
}

// TestFlippedSegmentCostsItselfOnly: the import goes on behind it.
func TestFlippedSegmentCostsItselfOnly(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	d := fill(t, from)
	stream, x := export(t, options(from), ExportOptions{})
	stream[find(stream, payload(0, 5000))+17] ^= 4
	got, err := imported(t, to, stream)
	if err != nil || got.Complete || len(got.Refused) != 1 || got.Segments != x.Segments-1 {
		t.Fatalf("%v, %+v", err, got)
	}
	wantClean(t, "import", to)
	wantBounded(t, "import", d, recoverAll(t, to))
}

// TestHostileStreams: nothing outside the campaign is touched, nothing is
// followed, nothing huge is allocated or written.
func TestHostileStreams(t *testing.T) {
	from := t.TempDir()
	fill(t, from)
	good, _ := export(t, options(from), ExportOptions{})
	first := func(h tar.Header, body []byte) func(*tar.Writer) {
		return func(w *tar.Writer) {
			if h.Size == 0 {
				h.Size = int64(len(body))
			}
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			w.Write(body) // fewer bytes than announced are part of the test
		}
	}
	head := func(w *tar.Writer) {
		if err := writeRecord(w, headName, time.Unix(0, 0), head{Format: streamFormat, Version: streamVersion}); err != nil {
			t.Fatal(err)
		}
	}
	page := make([]byte, 8192)
	for name, c := range map[string]struct {
		parts []func(*tar.Writer)
		want  error
	}{
		"nothing":           {nil, ErrCutOff},
		"traversal":         {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: "../../evil"}, page)}, ErrBadStream},
		"absolute":          {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: "/tmp/evil"}, page)}, ErrBadStream},
		"symbolic link":     {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeSymlink, Name: segmentEntry(0), Linkname: "/etc/passwd"}, nil)}, ErrBadStream},
		"hard link":         {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeLink, Name: segmentEntry(0), Linkname: "/etc/passwd"}, nil)}, ErrBadStream},
		"directory":         {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeDir, Name: "segments/"}, nil)}, ErrBadStream},
		"device":            {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeChar, Name: segmentEntry(0)}, nil)}, ErrBadStream},
		"extended header":   {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: segmentEntry(0), PAXRecords: map[string]string{"CASCADE.more": "99"}}, page)}, ErrBadStream},
		"wrong number":      {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: segmentEntry(1)}, page)}, ErrBadStream},
		"head twice":        {[]func(*tar.Writer){head, head}, ErrBadStream},
		"huge record":       {[]func(*tar.Writer){first(tar.Header{Typeflag: tar.TypeReg, Name: headName, Size: 1 << 40}, page)}, ErrBadStream},
		"no JSON":           {[]func(*tar.Writer){first(tar.Header{Typeflag: tar.TypeReg, Name: headName}, []byte("{"))}, ErrBadStream},
		"unknown field":     {[]func(*tar.Writer){first(tar.Header{Typeflag: tar.TypeReg, Name: headName}, []byte(`{"format":"cascade-campaign","version":1,"x":1}`))}, ErrBadStream},
		"other format":      {[]func(*tar.Writer){first(tar.Header{Typeflag: tar.TypeReg, Name: headName}, []byte(`{"format":"x","version":1}`))}, ErrBadStream},
		"newer version":     {[]func(*tar.Writer){first(tar.Header{Typeflag: tar.TypeReg, Name: headName}, []byte(`{"format":"cascade-campaign","version":2}`))}, ErrBadStream},
		"segment of zeros":  {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: segmentEntry(0)}, page)}, ErrCutOff},
		"segment too large": {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: segmentEntry(0), Size: 7 << 30}, page)}, ErrCutOff},
		"terabytes":         {[]func(*tar.Writer){head, first(tar.Header{Typeflag: tar.TypeReg, Name: segmentEntry(0), Size: 1 << 42}, page)}, ErrBadStream},
	} {
		t.Run(name, func(t *testing.T) {
			var stream bytes.Buffer
			w := tar.NewWriter(&stream)
			for _, part := range c.parts {
				part(w)
			}
			outside := t.TempDir()
			to := filepath.Join(outside, "c")
			got, err := imported(t, to, stream.Bytes())
			if !errors.Is(err, c.want) || got.Segments != 0 {
				t.Errorf("%v, %+v", err, got)
			}
			if left, _ := filepath.Glob(filepath.Join(outside, "*", "*")); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			if left, _ := filepath.Glob(filepath.Join(outside, "*")); !slices.Equal(left, []string{to}) {
				t.Errorf("made %v", left)
			}
		})
	}
	if _, err := imported(t, t.TempDir(), append(bytes.Clone(good[:len(good)-1024]), good...)); !errors.Is(err, ErrBadStream) {
		t.Errorf("a stream that goes on: %v", err)
	}
}

// TestImportFails: when the file system refuses, only whole segments stay.
func TestImportFails(t *testing.T) {
	from := t.TempDir()
	d := fill(t, from)
	stream, _ := export(t, options(from), ExportOptions{})
	for _, op := range []vfs.Op{vfs.OpMkdir, vfs.OpCreate, vfs.OpWrite, vfs.OpRename, vfs.OpSync, vfs.OpClose} {
		for after := range 4 {
			what := fmt.Sprintf("%s %d fails", op, after)
			to := t.TempDir()
			o := options(to)
			fs := vfstest.NewFault(vfs.OS{})
			fs.Add(vfstest.Rule{Op: op, After: after, Err: vfs.ErrQuota, Bytes: 5000})
			o.FS = fs
			got, err := Import(t.Context(), o, bytes.NewReader(stream), ImportOptions{})
			if !errors.Is(err, vfs.ErrQuota) && !got.Complete {
				t.Fatalf("%s: %v", what, err)
			}
			if n := len(files(t, to, "*")); n != got.Segments {
				t.Errorf("%s: %d files, %d segments", what, n, got.Segments)
			}
			wantClean(t, what, to)
			wantBounded(t, what, d, recoverAll(t, to))
		}
	}
}

func TestCancelledWorkStops(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir)
	stream, _ := export(t, options(dir), ExportOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, checkErr := Check(ctx, options(dir), CheckOptions{Payloads: true})
	_, exportErr := Export(ctx, options(dir), io.Discard, ExportOptions{})
	_, importErr := Import(ctx, options(t.TempDir()), bytes.NewReader(stream), ImportOptions{})
	for what, err := range map[string]error{"check": checkErr, "export": exportErr, "import": importErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", what, err)
		}
	}
	o := options(dir)
	fs := vfstest.NewFault(vfs.OS{})
	gate := make(chan struct{})
	fs.Add(vfstest.Rule{Op: vfs.OpRead, Block: gate})
	o.FS = fs
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := Check(ctx, o, CheckOptions{}); !errors.Is(err, context.Canceled) { // returns although reads hang
		t.Errorf("a file system that hangs: %v", err)
	}
	close(gate)
}

// TestImportBesideReaders: a rank that starts while an import runs sees whole
// segments only.
func TestImportBesideReaders(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	d := fill(t, from)
	stream, x := export(t, options(from), ExportOptions{})
	seen := 0
	o := options(to)
	o.Progress = func(int64, int64) {
		seen++
		if seen%20 == 0 {
			wantBounded(t, "meanwhile", d, recoverAll(t, to))
		}
	}
	got, err := Import(t.Context(), o, bytes.NewReader(stream), ImportOptions{Size: int64(len(stream))})
	if err != nil || got.Segments != x.Segments || seen < 20 {
		t.Errorf("%v, %+v, %d looks", err, got, seen)
	}
}

func FuzzImport(f *testing.F) {
	var small bytes.Buffer
	dir := f.TempDir()
	s, err := segment.Open(segment.Options{Dir: dir, Incarnation: 1})
	if err != nil {
		f.Fatal(err)
	}
	p := payload(1, 600)
	id := block.Sum(block.Bits128, p)
	if err := s.Put(context.Background(), tiers.Item{Info: block.Info{ID: id, Size: 600, CRC: block.CRC(p)}, Data: p, Names: []block.Name{{Key: "k", Seq: 1}}}); err != nil {
		f.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	if _, err := Export(context.Background(), options(dir), &small, ExportOptions{}); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Fuzz(func(t *testing.T, stream []byte) {
		to := t.TempDir()
		got, err := Import(context.Background(), options(to), bytes.NewReader(stream), ImportOptions{})
		if err != nil && !errors.Is(err, ErrBadStream) && !errors.Is(err, ErrCutOff) {
			t.Fatal(err)
		}
		r, err := Check(context.Background(), options(to), CheckOptions{Payloads: true})
		if err != nil || !r.Clean || r.Totals.Segments != got.Segments {
			t.Fatalf("%v, %+v, imported %+v", err, r, got)
		}
		if left, _ := os.ReadDir(to); got.Segments == 0 && len(left) > 0 && !strings.HasPrefix(left[0].Name(), "rank") {
			t.Fatalf("left %v", left)
		}
	})
}
