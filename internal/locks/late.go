package locks

// Late is a Mutex whose holder can leave for later what may wait, such as
// writing a log line.
type Late struct {
	Mutex
	after []func()
}

// Later has fn called once the mutex is unlocked. The caller holds it.
func (m *Late) Later(fn func()) {
	m.AssertHeld()
	m.after = append(m.after, fn)
}

// Unlock unlocks the mutex, and does what was left for later.
func (m *Late) Unlock() {
	after := m.after
	if after != nil {
		m.after = nil
	}
	m.Mutex.Unlock()
	for _, fn := range after {
		fn()
	}
}
