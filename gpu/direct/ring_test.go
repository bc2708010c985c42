package direct

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cascadekv/gpu/gio"
	"cascadekv/gpu/store"
	"cascadekv/internal/crc32c"
	"cascadekv/internal/region"
	"cascadekv/internal/testing/noise"
)

// lying is a pin of a block that lies at extents.
type lying struct {
	extents  []store.Extent
	released int
}

func (l *lying) Extents() ([]store.Extent, func(), bool) {
	return l.extents, func() { l.released++ }, l.extents != nil
}

// rig is a ring of 8 MiB over three containers, of which the second is not ready, and what is in the others.
func rig(t *testing.T) (*Ring, [][]byte) {
	t.Helper()
	files, content := make([]*os.File, 3), make([][]byte, 3)
	for i := range files {
		content[i] = noise.Bytes(uint64(i), 1<<20)
		if i == 1 {
			continue
		}
		path := filepath.Join(t.TempDir(), "container")
		err := os.WriteFile(path, content[i], 0o600)
		if err == nil {
			files[i], err = os.Open(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer files[i].Close()
	}
	r, err := Open(files, Options{Bytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		<-r.Done()
	})
	return r, content
}

// TestBatch: objects and pieces of memory that are cut at different places come together; one with another checksum is not good.
func TestBatch(t *testing.T) {
	r, content := rig(t)
	objects := func(wrong uint32) []store.Extent {
		at := func(c int, offset, n int64) store.Extent {
			return store.Extent{Container: c, Offset: offset, Bytes: n, CRC: crc32c.Checksum(content[c][offset:][:n])}
		}
		all := []store.Extent{at(0, 4096, 12288), at(2, 8192, 8192), at(0, 65536, 4096)}
		all[1].CRC ^= wrong
		return all
	}
	want := append(append(append([]byte{}, content[0][4096:][:12288]...), content[2][8192:][:8192]...), content[0][65536:][:4096]...)
	good, bad := &lying{extents: objects(0)}, &lying{extents: objects(1)}
	to := []region.Extent{{Offset: 1 << 20, Length: 4096}, {Offset: 8192, Length: 12288}, {Offset: 2 << 20, Length: 8192}}
	more := []region.Extent{{Offset: 3 << 20, Length: 24576}}
	b := r.Batch(gio.Read, 1, 1)
	if !b.Add(good, to) || !b.Add(bad, more) {
		t.Fatal("a block is not taken")
	}
	for name, x := range map[string]struct {
		pin any
		to  []region.Extent
	}{
		"no pin of disks":    {7, more},
		"in memory":          {&lying{}, more},
		"a file not ready":   {&lying{extents: []store.Extent{{Container: 1, Bytes: 24576}}}, more},
		"a file not known":   {&lying{extents: []store.Extent{{Container: 3, Bytes: 24576}}}, more},
		"less than the room": {good, []region.Extent{{Offset: 0, Length: 28672}}},
		"more than the room": {good, []region.Extent{{Offset: 0, Length: 20480}}},
		"not at a page":      {good, []region.Extent{{Offset: 100, Length: 24576}}},
		"no whole page":      {&lying{extents: []store.Extent{{Bytes: 100}}}, []region.Extent{{Offset: 0, Length: 100}}},
	} {
		if b.Add(x.pin, x.to) || b.Blocks() != 2 {
			t.Errorf("%s is taken", name)
		}
	}
	held := good.released
	if err := b.Begin(); err != nil {
		t.Fatal(err)
	}
	if r.Came(1, 1) {
		t.Error("the event has come by itself")
	}
	r.queue.Word(1).Store(1)
	if err := b.Wait(t.Context()); err != nil || !r.Came(1, 1) {
		t.Fatal(err)
	}
	if !b.Good(0) || b.Good(1) {
		t.Errorf("good: %v, %v", b.Good(0), b.Good(1))
	}
	var got []byte
	for _, e := range to {
		got = append(got, r.server.Data()[e.Offset:][:e.Length]...)
	}
	if string(got) != string(want) {
		t.Error("other bytes")
	}
	if good.released != held || bad.released != 0 {
		t.Error("a block was released early")
	}
	b.End()
	b.End()
	if good.released != held+1 || bad.released != 1 {
		t.Errorf("released %d and %d times", good.released-held, bad.released)
	}
}

// TestBatches: there are as many as a ring has, and one that is given up leaves its place.
func TestBatches(t *testing.T) {
	r, content := rig(t)
	one := func() *lying {
		return &lying{extents: []store.Extent{{Bytes: 4096, CRC: crc32c.Checksum(content[0][:4096])}}}
	}
	var all []*Batch
	for b := r.Batch(gio.Read, 2, 1); b != nil; b = r.Batch(gio.Read, 2, 1) {
		if !b.Add(one(), []region.Extent{{Offset: int64(len(all)) * 4096, Length: 4096}}) {
			t.Fatal("a block is not taken")
		}
		if err := b.Begin(); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	if len(all) != depth {
		t.Errorf("%d batches", len(all))
	}
	all[3].Cancel()
	if err := all[3].Wait(t.Context()); !errors.Is(err, gio.ErrCancelled) {
		t.Errorf("one that was given up: %v", err)
	}
	all[3].End()
	if b := r.Batch(gio.Read, 2, 1); b == nil {
		t.Error("its place is not free")
	} else {
		b.End()
	}
	r.queue.Word(2).Store(1)
	for i, b := range all {
		if i == 3 {
			continue
		}
		if err := b.Wait(t.Context()); err != nil || !b.Good(0) {
			t.Errorf("batch %d: %v", i, err)
		}
		b.End()
	}
}

func TestNoFiles(t *testing.T) {
	for _, files := range [][]*os.File{nil, {nil, nil}} {
		if _, err := Open(files, Options{Bytes: 4096}); !errors.Is(err, ErrNoFiles) {
			t.Errorf("%d containers: %v", len(files), err)
		}
	}
}
