package directory

// table finds items by hash: slots with open addressing, of which five in six are taken
// at most.
type table struct {
	slots []slot
	taken int
	chunks
}

// slot is where an item is that has a hash; ref 0: it is empty.
type slot struct{ hash, ref uint32 }

// first is the slot where the search for a hash begins.
func (t *table) first(hash uint32) int {
	return int(uint64(hash) * uint64(len(t.slots)) >> 32)
}

func (t *table) next(i int) int {
	if i++; i == len(t.slots) {
		return 0
	}
	return i
}

// put puts an item in the place of the one of slot i, or in a slot for a hash if that is
// negative. It is false if there is no number for one more chunk, and all is as before.
func (t *table) put(i int, hash uint32, item []byte) bool {
	if i >= 0 && t.replace(t.slots[i].ref, item) {
		return true
	}
	ref := t.add(item)
	if ref == 0 {
		return false
	}
	if i >= 0 {
		t.remove(t.slots[i].ref)
		t.slots[i].ref = ref
		return true
	}
	if (t.taken+1)*6 > len(t.slots)*5 {
		t.resize()
	}
	t.place(slot{hash, ref})
	t.taken++
	return true
}

func (t *table) place(s slot) {
	i := t.first(s.hash)
	for t.slots[i].ref != 0 {
		i = t.next(i)
	}
	t.slots[i] = s
}

// resize leaves room for a quarter more.
func (t *table) resize() {
	old := t.slots
	t.slots = make([]slot, t.taken*3/2+4)
	for _, s := range old {
		if s.ref != 0 {
			t.place(s)
		}
	}
}

// delete empties slot i. Another one may be in it then.
func (t *table) delete(i int) {
	t.remove(t.slots[i].ref)
	n := len(t.slots)
	for j := t.next(i); t.slots[j].ref != 0; j = t.next(j) {
		// What is found from before i on may lie in i.
		if first := t.first(t.slots[j].hash); (j-first+n)%n >= (j-i+n)%n {
			t.slots[i], i = t.slots[j], j
		}
	}
	t.slots[i] = slot{}
	t.taken--
}

// tidy gives back what is not used. hash is that of an item.
func (t *table) tidy(hash func(item []byte) uint32) {
	switch {
	case t.taken == 0:
		*t = table{}
		return
	case t.taken*3+8 < len(t.slots):
		t.resize()
	}
	moved := func(item []byte, from, to uint32) {
		i := t.first(hash(item))
		for t.slots[i].ref != from {
			i = t.next(i)
		}
		t.slots[i].ref = to
	}
	for t.evacuate(moved) {
	}
}
