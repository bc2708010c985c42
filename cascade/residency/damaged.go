package residency

import "sync"

// Damaged remembers places in other ranks' segments where this rank read other bytes than their
// owner stated, or none. A place never holds anything else, so nothing is a copy of what is
// there. It is safe for concurrent use; the zero value is empty.
type Damaged struct {
	mu struct {
		sync.Mutex
		found map[filePlace]struct{}
	}
}

// filePlace is where a payload begins: in a file, which never comes again once it is gone.
type filePlace struct {
	path   string
	offset int64
}

// maxDamaged bounds the places. At the bound all are forgotten: who reads them again finds out again.
const maxDamaged = 1 << 14

// Add records a place.
func (d *Damaged) Add(path string, offset int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.found == nil || len(d.mu.found) >= maxDamaged {
		d.mu.found = map[filePlace]struct{}{}
	}
	d.mu.found[filePlace{path, offset}] = struct{}{}
}

// Has reports whether a place was recorded.
func (d *Damaged) Has(path string, offset int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, has := d.mu.found[filePlace{path, offset}]
	return has
}
