package campaign

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cascadekv/internal/block"
	"cascadekv/internal/testing/segmenttest"
	"cascadekv/lustre/segment/format"
)

// writeVersion1 puts a segment of version 1 into a campaign.
func writeVersion1(t *testing.T, dir string) (path string, file []byte) {
	t.Helper()
	path, file = filepath.Join(dir, segmenttest.Version1ID.Path()), segmenttest.Version1(t)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, file
}

func headerOf(t *testing.T, path string) format.Header {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, h, err := format.DecodeHeader(p)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestVersion1 is checked and exported as any segment, and repaired into one of this version.
func TestVersion1(t *testing.T) {
	dir := t.TempDir()
	path, file := writeVersion1(t, dir)
	items := segmenttest.Version1Items()
	wantClean(t, "version 1", dir)
	whole := recoverAll(t, dir)

	stream, copied := bytes.Buffer{}, t.TempDir()
	if _, err := Export(t.Context(), options(dir), &stream, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), options(copied), &stream, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := recoverAll(t, copied); !maps.EqualFunc(got.blocks, whole.blocks, slices.Equal) || !maps.Equal(got.names, whole.names) {
		t.Errorf("exported: %v, want %v", got.names, whole.names)
	}

	flip(t, path, int64(bytes.Index(file, items[0].Data))+5)
	r := check(t, options(dir), CheckOptions{Payloads: true})
	if err := Repair(t.Context(), r, RepairOptions{}); err != nil || r.Repairs[0].BlocksLost != 1 || r.Repairs[0].Blocks != 2 {
		t.Fatalf("%v, %+v", err, r.Repairs)
	}
	if h := headerOf(t, filepath.Join(dir, r.Repairs[0].Into[0])); h.Version != format.Version {
		t.Errorf("repaired into version %d", h.Version)
	}
	got := recoverAll(t, dir)
	for _, it := range items {
		if want := it.Info.ID != items[0].Info.ID; (got.blocks[it.Info.ID] != nil) != want {
			t.Errorf("block %v: there %v", it.Info.ID, !want)
		}
	}
}

// TestLayoutsInReports: a listing has the newest layout of a namespace; an export takes it along
// with the namespace's names.
func TestLayoutsInReports(t *testing.T) {
	dir, d := t.TempDir(), newData()
	r := startRank(t, dir, 0, 0x1000, d)
	layouts := map[string]block.Layout{"a": {Tokens: 16, DType: "bf16"}, "b": {Tokens: 32}}
	for ns, l := range layouts {
		if err := r.s.SetLayout(ns, 9, l); err != nil {
			t.Fatal(err)
		}
	}
	r.put(1, 5000, "a", 10)
	r.put(2, 5000, "b", 11)
	r.close()
	want := func(what, dir string, want map[string]block.Layout) {
		t.Helper()
		l, err := List(t.Context(), options(dir), -1)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]block.Layout{}
		for _, n := range l.Namespaces {
			if n.Layout != nil {
				got[n.Name] = *n.Layout
			}
		}
		if !maps.Equal(got, want) || l.Segments[0].Names != len(want) {
			t.Errorf("%s: %+v, %d names; want %+v", what, got, l.Segments[0].Names, want)
		}
	}
	want("listed", dir, layouts)
	var stream bytes.Buffer
	copied := t.TempDir()
	if _, err := Export(t.Context(), options(dir), &stream, ExportOptions{Namespaces: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Import(t.Context(), options(copied), &stream, ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	want("exported", copied, map[string]block.Layout{"a": layouts["a"]})
}
