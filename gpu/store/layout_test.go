package store

import (
	"errors"
	"testing"
)

func TestShape(t *testing.T) {
	llama := Shape{Layers: 32, BlockTokens: 64, KVHeads: 8, HeadDim: 128, ElementBytes: 2}
	for tp, want := range map[int]int64{0: 128 << 10, 1: 128 << 10, 2: 64 << 10, 8: 16 << 10, 16: 16 << 10} {
		s := llama
		s.TP = tp
		if err := s.Check(); err != nil || s.ObjectBytes() != want || s.FileBytes() != 64*want || s.Objects() != 64 {
			t.Errorf("TP %d: %v, %d bytes an object, %d a file", tp, err, s.ObjectBytes(), s.FileBytes())
		}
	}
	for name, change := range map[string]func(*Shape){
		"no layers":        func(s *Shape) { s.Layers = 0 },
		"many layers":      func(s *Shape) { s.Layers = 1 << 20 },
		"layers that wrap": func(s *Shape) { s.Layers = 1 << 62 },
		"no tokens":        func(s *Shape) { s.BlockTokens = 0 },
		"heads cut":        func(s *Shape) { s.TP = 3 },
		"negative TP":      func(s *Shape) { s.TP = -1 },
		"an overflow":      func(s *Shape) { s.HeadDim = 1 << 62 },
		"a large object":   func(s *Shape) { s.BlockTokens, s.HeadDim = 1<<16, 1<<16 },
		"elements of none": func(s *Shape) { s.ElementBytes = 0 },
	} {
		s := llama
		change(&s)
		if err := s.Check(); !errors.Is(err, ErrShape) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLargeLayouts: offsets that no file can have, or that wrap, are refused.
func TestLargeLayouts(t *testing.T) {
	for _, l := range []layout{{64, 128 << 10, 1, 64}, {64, 128 << 10, 4, 1 << 28}, {maxObjects, 1 << 30, 1, 128}} {
		if err := l.check(); err != nil {
			t.Error(err)
		}
	}
	for _, l := range []layout{{maxObjects, 1 << 30, 1, 129}, {maxObjects, 1 << 30, 1, 1 << 21}, {maxObjects, 1 << 30, 1, 1 << 62}, {2, 1, 2, 1 << 39}} {
		if err := l.check(); !errors.Is(err, ErrShape) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	fs, dirs := disks(t, 1)
	o := newHost(small, 1).options(dirs, 1)
	o.FS, o.unlocked, o.ContainerFiles = fs, true, 1<<60
	if s, err := Open(t.Context(), o); !errors.Is(err, ErrShape) {
		t.Errorf("opened %v, %v", s != nil, err)
	}
}

// TestPlaces: no two objects share a byte, none leaves its container, and a layer of
// many blocks takes all disks alike.
func TestPlaces(t *testing.T) {
	for _, l := range []layout{
		{objects: 6, bytes: 8448, dirs: 1, each: 4}, {objects: 6, bytes: 8448, dirs: 4, each: 4},
		{objects: 64, bytes: 128 << 10, dirs: 3, each: 64}, {objects: 6, bytes: 1, dirs: 6, each: 1}, {objects: 10, bytes: 4096, dirs: 4, each: 7},
	} {
		const files = 40
		type at struct {
			container int
			offset    int64
		}
		taken := map[at]bool{}
		for o := range l.objects {
			disks := make([]int, l.dirs)
			for f := range uint32(files) {
				c, off := l.place(f, o)
				switch {
				case taken[at{c, off}]:
					t.Fatalf("%+v: file %d, object %d: offset %d of container %d is taken", l, f, o, off, c)
				case off%page != 0 || off < page || off+l.bytes > l.containerBytes():
					t.Fatalf("%+v: offset %d of %d", l, off, l.containerBytes())
				case c/l.dirs != int(f)/l.each:
					t.Fatalf("%+v: file %d in group %d", l, f, c/l.dirs)
				}
				taken[at{c, off}] = true
				disks[c%l.dirs]++
			}
			for _, n := range disks {
				if n < files/l.dirs || n > files/l.dirs+1 {
					t.Errorf("%+v: object %d of %d files: %v by disk", l, o, files, disks)
				}
			}
		}
	}
}

// TestSizes is the example of Tutti §3.1.
func TestSizes(t *testing.T) {
	got := SizesOf(60 << 30)
	if want := (Sizes{15_728_640, 983_040, 983_040 * 4096, 15 << 20, 60 << 30}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got.PRPBytes != 3840<<20 || got.SGLBytes > 16<<20 {
		t.Errorf("%+v", got)
	}
}

// TestTable: the pieces of each object are its memory, in order, none longer than it is
// contiguous.
func TestTable(t *testing.T) {
	const object, slots = 10_000, 9
	for name, c := range map[string]struct {
		granule   int64
		translate func(uint64) (uint64, error)
	}{
		"as it is":    {0, nil},
		"small":       {4096, nil},
		"in disorder": {8192, func(a uint64) (uint64, error) { return a<<20 | 1<<63, nil }},
	} {
		m := Memory{Slots: slots, Granule: c.granule, Translate: c.translate,
			Tensors: []Tensor{{0x1000, object}, {0x100000, object + 240}}}
		table, err := NewTable(m, object)
		if err != nil {
			t.Fatal(err)
		}
		for o := range 2 {
			for slot := range slots {
				pieces, err := table.Append([]Entry{{1, 2, 3}}, o, slot)
				if err != nil || pieces[0] != (Entry{1, 2, 3}) {
					t.Fatal(err, pieces)
				}
				pieces = pieces[1:]
				at, left := m.Tensors[o].Base+uint64(slot)*uint64(m.Tensors[o].Stride), int64(object)
				for _, e := range pieces {
					want := at
					if c.translate != nil {
						skip := (at - m.Tensors[o].Base) % 8192
						want, _ = c.translate(at - skip)
						want += skip
					}
					if e.Addr != want || e.ID != uint32(o) || int64(e.Len) > left || e.Len == 0 {
						t.Fatalf("%s: object %d, slot %d: %+v, want %#x", name, o, slot, pieces, want)
					}
					at, left = at+uint64(e.Len), left-int64(e.Len)
				}
				if left != 0 || c.translate == nil && len(pieces) != 1 {
					t.Errorf("%s: object %d, slot %d: %+v, %d bytes are missing", name, o, slot, pieces, left)
				}
			}
		}
		if _, err := table.Append(nil, 0, slots); !errors.Is(err, ErrMemory) {
			t.Errorf("no such slot: %v", err)
		}
		if _, err := table.Append(nil, 2, 0); !errors.Is(err, ErrMemory) {
			t.Errorf("no such object: %v", err)
		}
	}
	for name, m := range map[string]Memory{
		"objects overlap": {Slots: 2, Tensors: []Tensor{{0, object - 1}}},
		"past the end":    {Slots: 2, Tensors: []Tensor{{^uint64(0) - 100, object}}},
		"an overflow":     {Slots: 1 << 40, Tensors: []Tensor{{0, 1 << 40}}},
		"bytes that wrap": {Slots: 1 << 31, Tensors: []Tensor{{0, 1<<32 - 1}}},
		"too much":        {Slots: 1 << 20, Tensors: []Tensor{{0, 1 << 26}, {1 << 47, 1 << 26}}},
		"negative":        {Slots: -1},
		"tiny pieces":     {Granule: 1},
		"no address":      {Slots: 1, Tensors: []Tensor{{0, object}}, Translate: func(uint64) (uint64, error) { return 0, ErrMemory }},
	} {
		if _, err := NewTable(m, object); !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sixty := Memory{Slots: 7680, Tensors: make([]Tensor, 64)}
	for i := range sixty.Tensors {
		sixty.Tensors[i] = Tensor{uint64(i) << 30, 128 << 10}
	}
	if table, err := NewTable(sixty, 128<<10); err != nil || table.Bytes() != 15<<20 {
		t.Errorf("60 GiB: %v, %d bytes", err, table.Bytes())
	}
}
