package stats

// stack finds reuse distances. Each block has a slot in the order of last
// touches, and a binary indexed tree counts the slots that are taken, so a touch
// costs O(log n) for n distinct blocks. Slots that touches leave behind are
// squeezed out when they are as many as the taken ones.
type stack struct {
	slots  []uint32 // of each block, 1-based
	owners []uint32 // block + 1 of each slot, 0 where none has it
	tree   []uint32 // sums of taken slots, 1-based
	next   uint32   // first slot that was never taken
}

// cold is the distance of a first touch.
const cold = -1

// touch records a touch of a block, numbered from 0 in order of first touches,
// and returns its reuse distance, or cold.
func (s *stack) touch(block uint32) (distance int64) {
	if int(s.next) >= len(s.tree) {
		s.squeeze()
	}
	distance = cold
	if int(block) < len(s.slots) {
		slot := s.slots[block]
		distance = int64(len(s.slots)) - s.taken(slot)
		s.add(slot, ^uint32(0))
		s.owners[slot] = 0
	} else {
		s.slots = append(s.slots, 0)
	}
	s.slots[block] = s.next
	s.owners[s.next] = block + 1
	s.add(s.next, 1)
	s.next++
	return distance
}

// taken counts the taken slots up to slot.
func (s *stack) taken(slot uint32) (n int64) {
	for ; slot > 0; slot &= slot - 1 {
		n += int64(s.tree[slot])
	}
	return n
}

// add adds n, modulo 2³², to what slot counts for.
func (s *stack) add(slot, n uint32) {
	for ; int(slot) < len(s.tree); slot += slot & -slot {
		s.tree[slot] += n
	}
}

// squeeze gives the taken slots the lowest numbers, in their order, and makes
// room for as many more.
func (s *stack) squeeze() {
	size := max(1024, 2*len(s.slots)+2)
	owners := make([]uint32, size)
	s.next = 1
	for _, owner := range s.owners {
		if owner != 0 {
			owners[s.next] = owner
			s.slots[owner-1] = s.next
			s.next++
		}
	}
	s.owners = owners
	s.tree = make([]uint32, size)
	for slot := 1; slot < size; slot++ {
		if owners[slot] != 0 {
			s.tree[slot]++
		}
		if up := slot + slot&-slot; up < size {
			s.tree[up] += s.tree[slot]
		}
	}
}
