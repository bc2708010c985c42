package slack

import (
	"math"
	"time"
)

// Quantity is what an estimate is of.
type Quantity int

// The time of a window's compute, and of launches of reads and writes.
const (
	WindowTime Quantity = iota
	ReadTime
	WriteTime
)

// Estimates is how good estimates of one quantity have been.
type Estimates struct {
	Count uint64  `json:"count"`
	Error float64 `json:"error"` // mean of |estimate - actual| / actual
	Bias  float64 `json:"bias"`  // mean of (estimate - actual) / actual: below 0, estimates are too short
}

// Stats counts what a scheduler has done since New.
type Stats struct {
	Requests      uint64 `json:"requests"`
	Layers        uint64 `json:"layers"` // that were planned
	DecodeSteps   uint64 `json:"decode_steps"`
	Reads         uint64 `json:"reads"`          // IOCBs launched
	RequiredReads uint64 `json:"required_reads"` // of these, without a window
	Writes        uint64 `json:"writes"`
	Forgotten     uint64 `json:"forgotten_writes"`
	Deferred      uint64 `json:"deferred"` // windows that were too small for any queued write

	Window Estimates `json:"window"`
	Read   Estimates `json:"read"`
	Write  Estimates `json:"write"`
}

// Stats returns a copy.
func (s *Scheduler) Stats() Stats { return s.stats }

// Observe records how long something took whose estimate was in a decision:
// Window.Time or Launch.Estimate. Times that are not above 0 do not count.
func (s *Scheduler) Observe(q Quantity, estimate, actual time.Duration) {
	if actual <= 0 || estimate <= 0 {
		return
	}
	e := &s.stats.Window
	switch q {
	case ReadTime:
		e = &s.stats.Read
	case WriteTime:
		e = &s.stats.Write
	}
	off := float64(estimate-actual) / float64(actual)
	e.Count++
	e.Error += (math.Abs(off) - e.Error) / float64(e.Count)
	e.Bias += (off - e.Bias) / float64(e.Count)
}
