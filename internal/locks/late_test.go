package locks

import (
	"slices"
	"testing"
)

// What is left for later is done once the mutex is free, in order, and once.
func TestLaterIsAfterUnlock(t *testing.T) {
	var m Late
	var did []int
	m.Lock()
	for i := range 3 {
		m.Later(func() {
			m.Lock() // a deadlock if it is still held
			did = append(did, i)
			m.Unlock()
		})
	}
	if m.Unlock(); !slices.Equal(did, []int{0, 1, 2}) {
		t.Errorf("did %v", did)
	}
	m.Lock()
	if m.Unlock(); len(did) != 3 {
		t.Errorf("did %v", did)
	}
}
