package policy

// enter puts a block into the heap under its key.
func (r *Ranking) enter(n Node) {
	b := &r.blocks[n]
	b.at = uint32(len(r.heap))
	r.heap = append(r.heap, slot{key: b.key, node: n})
	r.up(b.at)
}

// leave takes a block out of the heap; it does nothing for one that is not
// there.
func (r *Ranking) leave(n Node) {
	at := r.blocks[n].at
	if at == none {
		return
	}
	r.blocks[n].at = none
	last := uint32(len(r.heap) - 1)
	moved := r.heap[last]
	r.heap = r.heap[:last]
	if at != last {
		r.place(at, moved)
		r.fix(at)
	}
}

// fix restores the order after the key at i changed.
func (r *Ranking) fix(i uint32) {
	if r.up(i) == i {
		r.down(i)
	}
}

// up moves the slot at i towards the root and returns where it ends.
func (r *Ranking) up(i uint32) uint32 {
	s := r.heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if r.heap[parent].key <= s.key {
			break
		}
		r.place(i, r.heap[parent])
		i = parent
	}
	r.place(i, s)
	return i
}

// down moves the slot at i away from the root.
func (r *Ranking) down(i uint32) {
	s, n := r.heap[i], uint32(len(r.heap))
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && r.heap[child+1].key < r.heap[child].key {
			child++
		}
		if s.key <= r.heap[child].key {
			break
		}
		r.place(i, r.heap[child])
		i = child
	}
	r.place(i, s)
}

// place writes a slot and records in its block where it is.
func (r *Ranking) place(i uint32, s slot) {
	r.heap[i] = s
	r.blocks[s.node].at = i
}
