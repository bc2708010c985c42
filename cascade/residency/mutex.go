package residency

import (
	"cascadekv/internal/locks"
)

// lateMutex is a mutex whose holder can leave for later what may wait, such as
// writing a log line.
type lateMutex struct {
	locks.Mutex
	after []func()
}

// Later has fn called once the mutex is unlocked. The caller holds it.
func (m *lateMutex) Later(fn func()) {
	m.AssertHeld()
	m.after = append(m.after, fn)
}

// Unlock unlocks the mutex, and does what was left for later.
func (m *lateMutex) Unlock() {
	after := m.after
	if after != nil {
		m.after = nil
	}
	m.Mutex.Unlock()
	for _, fn := range after {
		fn()
	}
}
