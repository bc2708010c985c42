package estimate

import (
	"math"
	"sync"
	"time"
)

const (
	// perLoad is what a load's weight is multiplied with for each that ends after it: twenty
	// loads count, so that a level whose speed changes is known again after that.
	perLoad = 0.95

	// halfLife is the time after which a load counts half as much. A level that was slow is
	// not loaded from, so that nothing else would ever speak for it: some minutes later it is
	// as little known as at first.
	halfLife = 30 * time.Second

	// firstWeight is the weight of what is assumed of a level, beside loads of 1 each.
	firstWeight = 0.05

	// atMost bounds a load by so many times what it was expected to take: one that hung says
	// little of the next, several do.
	atMost = 8
)

// Line is how long loads from a level take: each Latency, and PerByte for every byte of it and of
// what is to be read before it.
type Line struct {
	Latency time.Duration
	PerByte float64 // nanoseconds
	Queued  int64   // bytes of loads that have begun and not ended
}

// Time predicts how long a load of so many bytes takes that begins at once; none takes no time.
func (l Line) Time(bytes int64) time.Duration {
	if bytes <= 0 {
		return 0
	}
	return l.Latency + time.Duration(l.PerByte*float64(bytes+l.Queued))
}

// Speed estimates the loads of one level. It is safe for concurrent use.
type Speed struct {
	mu     sync.Mutex
	first  Line
	queued int64
	at     time.Duration // of the last load that ended

	// A load takes latency times what is assumed of that, and perByte times what is assumed of
	// its bytes: these two factors are what is estimated. f and g are the two parts of what is
	// assumed of a load, together 1, and y is the time it took by what was assumed. These are
	// weighted sums over loads.
	ff, fg, gg, fy, gy float64
}

// NewSpeed returns the estimate of a level of which first is assumed; its Queued does not count.
func NewSpeed(first Line) *Speed { return &Speed{first: first} }

// Load is a load that has begun.
type Load struct {
	bytes, queued int64
	began         time.Duration
}

// Begin notes that a load of so many bytes begins. Its End must be called.
func (s *Speed) Begin(now time.Duration, bytes int64) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := Load{bytes, s.queued, now}
	s.queued += bytes
	return l
}

// End notes that a load has ended. One that came to nothing says nothing about the level.
func (s *Speed) End(now time.Duration, l Load, loaded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued -= l.bytes
	if !loaded || l.bytes <= 0 {
		return
	}
	s.ageLocked(now)
	expected := s.lineLocked()
	expected.Queued = l.queued
	took := min(now-l.began, atMost*expected.Time(l.bytes))
	latency, bytes := s.assumed(l.bytes + l.queued)
	f, g, y := latency/(latency+bytes), bytes/(latency+bytes), float64(took)/(latency+bytes)
	s.fadeLocked(perLoad)
	s.ff, s.fg, s.gg, s.fy, s.gy = s.ff+f*f, s.fg+f*g, s.gg+g*g, s.fy+f*y, s.gy+g*y
}

// Line is the estimate as of now.
func (s *Speed) Line(now time.Duration) Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ageLocked(now)
	l := s.lineLocked()
	l.Queued = s.queued
	return l
}

// ageLocked has loads count less that ended a while ago.
func (s *Speed) ageLocked(now time.Duration) {
	if now <= s.at {
		return
	}
	s.fadeLocked(math.Exp2(-float64(now-s.at) / float64(halfLife)))
	s.at = now
}

func (s *Speed) fadeLocked(by float64) {
	s.ff, s.fg, s.gg, s.fy, s.gy = s.ff*by, s.fg*by, s.gg*by, s.fy*by, s.gy*by
}

// assumed are the parts of the time that is assumed of a load, in nanoseconds.
func (s *Speed) assumed(bytes int64) (latency, perBytes float64) {
	return max(float64(s.first.Latency), 1), s.first.PerByte * float64(bytes)
}

// lineLocked is the line that lies closest to the loads by least squares, and a little to what was
// assumed, which decides where all loads are of one size. Neither part of it is negative.
func (s *Speed) lineLocked() Line {
	ff, gg, fy, gy := s.ff+firstWeight, s.gg+firstWeight, s.fy+firstWeight, s.gy+firstWeight
	det := ff*gg - s.fg*s.fg
	latency, perByte := (fy*gg-gy*s.fg)/det, (gy*ff-fy*s.fg)/det
	switch {
	case latency < 0:
		latency, perByte = 0, gy/gg
	case perByte < 0:
		latency, perByte = fy/ff, 0
	}
	return Line{Latency: time.Duration(latency * float64(s.first.Latency)), PerByte: perByte * s.first.PerByte}
}
