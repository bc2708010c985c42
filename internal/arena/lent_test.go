package arena

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLend: what is whole huge pages of the mapping is lent, and nothing else.
func TestLend(t *testing.T) {
	const size, origin = 16 << 20, 5 * Page
	a := NewAllocator(make([]byte, size/Page))
	a.Origin = origin
	a.Grow(size)
	alloc := func(n int64) int64 {
		t.Helper()
		off, err := a.Alloc(n, Payload)
		if err != nil {
			t.Fatal(err)
		}
		return off
	}
	small := alloc(64 << 10)
	one, two := alloc(hugePage), alloc(2*hugePage)
	odd := alloc(hugePage + Page)
	for _, off := range []int64{one, two} {
		if (origin+off)%hugePage != 0 {
			t.Errorf("whole huge pages are put at %d of the mapping", origin+off)
		}
	}
	for name, c := range map[string]struct {
		off, size int64
		want      bool
	}{
		"a huge page":  {one, hugePage, true},
		"two":          {two, 2 * hugePage, true},
		"a small one":  {small, 64 << 10, false},
		"a part more":  {odd, hugePage + Page, false},
		"not in place": {one + Page, hugePage, false},
		"nothing":      {one, 0, false},
	} {
		if got := a.MarkLent(c.off, c.size); got != c.want {
			t.Errorf("%s: Lend is %v", name, got)
		}
		if got := a.IsLent(c.off, c.size); got && !c.want && name != "nothing" {
			t.Errorf("%s: IsLent is %v", name, got)
		}
	}
	if !a.IsLent(one, hugePage) || !a.IsLent(two, 2*hugePage) || a.IsLent(odd, hugePage+Page) {
		t.Error("not just what was lent is lent")
	}
	a.Restore(one, hugePage)
	if a.IsLent(one, hugePage) || !a.IsLent(two, 2*hugePage) {
		t.Error("Restore took other marks")
	}
}

// TestLentOutlivesTheAllocator: the next one knows what is lent, whether anything
// lies there or not.
func TestLentOutlivesTheAllocator(t *testing.T) {
	const size, origin = 16 << 20, 3 * Page
	tags := make([]byte, size/Page)
	a := NewAllocator(tags)
	a.Origin = origin
	a.Grow(size)
	var used []Extent
	for range 3 {
		off, err := a.Alloc(2*hugePage, Payload)
		if err != nil || !a.MarkLent(off, 2*hugePage) {
			t.Fatal(off, err)
		}
		used = append(used, Extent{off, 2 * hugePage})
	}
	b := NewAllocator(tags)
	b.Origin = origin
	if rejected := b.Adopt(size, used[:1]); rejected != nil {
		t.Fatal(rejected)
	}
	if !b.IsLent(used[0].Offset, used[0].Size) {
		t.Error("what is in use is lent no longer")
	}
	free := b.Free()
	rooms := b.TakeLent()
	if len(rooms) != 4 || b.Free() != free-4*hugePage {
		t.Fatalf("%d huge pages are lent with nothing in them, %d bytes free of %d", len(rooms), b.Free(), free)
	}
	for off, err := int64(0), error(nil); err == nil; off, err = b.Alloc(64<<10, Payload) {
		if off > 0 && slices.ContainsFunc(rooms, func(r Extent) bool { return off < r.Offset+r.Size && r.Offset < off+64<<10 }) {
			t.Fatalf("lent room at %d was handed out", off)
		}
	}
	for _, r := range rooms {
		b.Restore(r.Offset, r.Size)
		b.Release(r.Offset, r.Size)
	}
	if off, err := b.Alloc(hugePage, Payload); err != nil || b.IsLent(off, hugePage) {
		t.Errorf("room that was restored: %d, %v", off, err)
	}
}

// TestReplace: a pipe that refers to memory keeps it as it was.
func TestReplace(t *testing.T) {
	m := mapNew(t, 2*hugePage)
	if !m.Lends() {
		t.Fatal("a file in /dev/shm is not in memory")
	}
	if err := m.Commit(0, 2*hugePage); err != nil {
		t.Fatal(err)
	}
	for i := range m.Bytes() {
		m.Bytes()[i] = byte(i % 251)
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	want := bytes.Clone(m.Bytes()[:8*Page])
	v := unix.Iovec{Base: &m.Bytes()[0]}
	v.SetLen(len(want))
	if n, err := unix.Vmsplice(fds[1], []unix.Iovec{v}, 0); err != nil || n != len(want) {
		t.Fatal(n, err)
	}
	if err := m.Replace(0, hugePage); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(m.Bytes()[:hugePage], func(b byte) bool { return b != 0 }) {
		t.Error("the new memory is not empty")
	}
	for i := range m.Bytes()[:hugePage] {
		m.Bytes()[i] = 0xff
	}
	got := make([]byte, len(want))
	if n, err := unix.Read(fds[0], got); err != nil || n != len(got) || !bytes.Equal(got, want) {
		t.Errorf("what the pipe referred to has changed (%d bytes, %v)", n, err)
	}
	if m.Bytes()[hugePage] != byte(hugePage%251) {
		t.Error("what lies behind has changed")
	}
}
