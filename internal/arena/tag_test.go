package arena

import "testing"

// TestTags holds examples of docs/format.md §2.3.
func TestTags(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		zone Zone
		want byte
	}{
		"block record":        {72, Records, 0x82},
		"smallest":            {1, Payload, 0x01},
		"512":                 {512, Payload, 0x08},
		"first above 512":     {513, Payload, 0x09},
		"one page":            {4096, Payload, 0x20},
		"largest cell":        {MaxCell, Payload, 0x36},
		"a run has no tag":    {MaxCell + 1, Payload, 0},
		"name with long text": {48 + 3*1024, Records, 0x80 | 0x1d},
	} {
		tags := make([]byte, 1024)
		a := NewAllocator(tags)
		a.Grow(1024 * Page)
		off, err := a.Alloc(c.size, c.zone)
		if err != nil {
			t.Fatal(err)
		}
		if got := tags[off/Page]; got != c.want {
			t.Errorf("%s: tag %#x, want %#x", name, got, c.want)
		}
		if has := HasRecords(tags); has != (c.zone == Records) {
			t.Errorf("%s: HasRecords is %v", name, has)
		}
		a.Release(off, c.size)
		if HasRecords(tags) {
			t.Errorf("%s: an empty slab keeps its tag", name)
		}
	}
}
