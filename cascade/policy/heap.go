package policy

// slot is one place of a heap. The key is repeated here so that comparing
// neighbours does not reach into the slab. Less is nearer to the root.
type slot struct {
	key  uint64
	node Node
}

// slots is a heap. Its methods call noted for each element that they move, with its new index.
type slots []slot

func (h *slots) push(s slot, noted func(Node, uint32)) {
	*h = append(*h, s)
	h.up(uint32(len(*h)-1), noted)
}

// drop takes out what is at a place.
func (h *slots) drop(at uint32, noted func(Node, uint32)) {
	last := uint32(len(*h) - 1)
	moved := (*h)[last]
	if *h = (*h)[:last]; at != last {
		(*h)[at] = moved
		h.fix(at, noted)
	}
}

// fix restores the order after the slot at i changed.
func (h *slots) fix(i uint32, noted func(Node, uint32)) {
	if h.up(i, noted) == i {
		h.down(i, noted)
	}
}

// up moves the slot at i towards the root and returns where it ends.
func (h *slots) up(i uint32, noted func(Node, uint32)) uint32 {
	heap := *h
	s := heap[i]
	for i > 0 {
		parent := (i - 1) / 2
		if heap[parent].key <= s.key {
			break
		}
		heap[i] = heap[parent]
		noted(heap[i].node, i)
		i = parent
	}
	heap[i] = s
	noted(s.node, i)
	return i
}

// down moves the slot at i away from the root.
func (h *slots) down(i uint32, noted func(Node, uint32)) {
	heap := *h
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
		heap[i] = heap[child]
		noted(heap[i].node, i)
		i = child
	}
	heap[i] = s
	noted(s.node, i)
}
