package policy

// enter puts a block into the heap of its class under its key.
func (r *Ranking) enter(n Node) {
	b := r.at(n)
	heap := &r.heaps[b.class]
	b.at = uint32(len(*heap))
	*heap = append(*heap, slot{key: b.key, node: n})
	r.up(int(b.class), b.at)
}

// leave takes a block out of its heap; it does nothing for one that is not
// there.
func (r *Ranking) leave(n Node) {
	b := r.at(n)
	if b.at == none {
		return
	}
	at, heap := b.at, &r.heaps[b.class]
	b.at = none
	last := uint32(len(*heap) - 1)
	moved := (*heap)[last]
	*heap = (*heap)[:last]
	if at != last {
		r.place(*heap, at, moved)
		r.fix(int(b.class), at)
	}
}

// fix restores the order of a class after the key at i changed.
func (r *Ranking) fix(class int, i uint32) {
	if r.up(class, i) == i {
		r.down(class, i)
	}
}

// up moves the slot at i towards the root and returns where it ends.
func (r *Ranking) up(class int, i uint32) uint32 {
	heap := r.heaps[class]
	s := heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if heap[parent].key <= s.key {
			break
		}
		r.place(heap, i, heap[parent])
		i = parent
	}
	r.place(heap, i, s)
	return i
}

// down moves the slot at i away from the root.
func (r *Ranking) down(class int, i uint32) {
	heap := r.heaps[class]
	s, n := heap[i], uint32(len(heap))
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && heap[child+1].key < heap[child].key {
			child++
		}
		if s.key <= heap[child].key {
			break
		}
		r.place(heap, i, heap[child])
		i = child
	}
	r.place(heap, i, s)
}

// place writes a slot and records in its block where it is.
func (r *Ranking) place(heap []slot, i uint32, s slot) {
	heap[i] = s
	r.at(s.node).at = i
}
