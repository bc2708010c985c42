package residency

import "cascadekv/cascade/estimate"

// BeganLoad notes that so many bytes begin to be read from a level. What it returns is to be
// called when they have been, with whether all of them are there.
func (m *Level) BeganLoad(bytes int64) (ended func(loaded bool)) {
	l := m.Speed.Begin(m.state.Age(m.state.Now()), bytes)
	return func(loaded bool) { m.Speed.End(m.state.Age(m.state.Now()), l, loaded) }
}

// Memory is the level that a view's bytes count as copied from: private memory is like the host one.
func (v *View) Memory() *Level { return v.from.state.Host() }

// LoadStats are what a tier's loads are expected to take; see package estimate.
type LoadStats struct {
	LatencyUS      int64 `json:"latency_us"`       // of each, in microseconds
	BytesPerSecond int64 `json:"bytes_per_second"` // of all that run together
	Queued         int64 `json:"queued_bytes"`     // of loads that have begun and not ended
}

// LoadStats is the estimate of a level by now.
func (m *Level) LoadStats() LoadStats {
	l := m.Line()
	return LoadStats{LatencyUS: l.Latency.Microseconds(), BytesPerSecond: int64(1e9 / max(l.PerByte, 1e-3)), Queued: l.Queued}
}

// BudgetStats is what the budgets of a level are and how far they are used up by now; nil: it has none.
func (m *Level) BudgetStats() *BudgetStats {
	if m.Reads.Rate() == 0 && m.Writes.Rate() == 0 {
		return nil
	}
	return &BudgetStats{m.Reads.Rate(), m.Writes.Rate(), m.Reads.Wait().Microseconds(), m.Writes.Wait().Microseconds()}
}

// Line is how long loads from a level take by now, within its budget of reads.
func (m *Level) Line() estimate.Line {
	l := m.Speed.Line(m.state.Age(m.state.Now()))
	if m.Files == nil {
		return l
	}
	if rate := m.Reads.Rate(); rate > 0 {
		l.PerByte = max(l.PerByte, 1e9/float64(rate))
		l.Latency += m.Reads.Wait()
	}
	return l
}
