package nvme

// staging is which of the buffers for blocks on their way to the disk are in use.
type staging []bool

// take returns the first of n buffers next to each other, the lowest there are, so that memory that was used
// once is used again; false if there are none.
func (s staging) take(n int64) (at int, ok bool) {
	free := int64(0)
	for i, used := range s {
		if free == n {
			break
		}
		if free++; used {
			at, free = i+1, 0
		}
	}
	if free < n {
		return 0, false
	}
	for i := range s[at:][:n] {
		s[at+i] = true
	}
	return at, true
}

func (s staging) give(at int, n int64) { clear(s[at:][:n]) }
