package stats

import (
	"fmt"
	"io"
	"time"

	"cascadekv/internal/trace"
)

// DefaultWindow is the length of a window where Options give none.
const DefaultWindow = time.Minute

// Options say how to measure. The zero value of each field means its default.
type Options struct {
	BlockTokens int           // tokens of a block; default trace.BlockTokens
	Limit       int           // requests to read at most; default all
	Window      time.Duration // length of a window, at least 1 ms; default DefaultWindow
}

// Stats are a trace's figures of reuse.
type Stats struct {
	trace.Info // with the hits of a cache without limits

	DedupRatio    float64      `json:"dedup_ratio"`    // blocks / distinct blocks
	Once          int64        `json:"once_blocks"`    // distinct blocks that are touched once
	OnceShare     float64      `json:"once_share"`     // of distinct blocks
	Reuses        int64        `json:"reuses"`         // touches after a block's first
	Distance      Distribution `json:"reuse_distance"` // of reuses, in distinct other blocks
	Age           Distribution `json:"reuse_age_ms"`   // of reuses, in milliseconds
	AgeShares     []AgeShare   `json:"reuse_age_shares"`
	Sessions      *Sessions    `json:"sessions,omitempty"` // nil if the trace names none
	WindowSeconds float64      `json:"window_seconds"`
	Windows       []Window     `json:"windows"` // those that have requests, in order of time
}

// AgeShare is the share of reuses that come within so many seconds.
type AgeShare struct {
	Seconds int64   `json:"seconds"`
	Share   float64 `json:"share"`
}

// Sessions are figures of the requests that name a session.
type Sessions struct {
	Count    int          `json:"count"`
	Groups   int          `json:"groups,omitempty"`   // distinct groups
	Requests int          `json:"requests"`           // that name a session
	Turns    Distribution `json:"requests_a_session"` // without bins
	GapMS    Distribution `json:"gap_ms"`             // from one request of a session to its next
}

// Window is a stretch of the trace.
type Window struct {
	Second   float64 `json:"second"`   // at which it begins, from the trace's origin
	Requests int     `json:"requests"` // that came in it
	Blocks   int64   `json:"blocks"`   // distinct blocks that they touch: the working set
	New      int64   `json:"new"`      // of these, touched for the first time
}

// ageBounds are those of AgeShares, in seconds.
var ageBounds = []int64{1, 10, 60, 120, 300, 600, 1800, 3600}

// Measure reads src to its end, or to the limit. Where time goes back, the
// latest time so far stands. It returns the error of src.
func Measure(src trace.Source, o Options) (Stats, error) {
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if o.Window < time.Millisecond {
		return Stats{}, fmt.Errorf("stats: a window of %v is below 1ms", o.Window)
	}
	m := measurement{
		summary: trace.NewSummary(o.BlockTokens), window: o.Window.Milliseconds(),
		ids: map[uint64]uint32{}, within: make([]int64, len(ageBounds)), sessions: map[string]*session{}, groups: map[string]struct{}{},
	}
	var req trace.Request
	for o.Limit <= 0 || m.requests < o.Limit {
		if err := src.Next(&req); err == io.EOF {
			break
		} else if err != nil {
			return Stats{}, err
		}
		m.add(&req)
	}
	return m.stats(), nil
}

// measurement is what Measure keeps.
type measurement struct {
	summary  *trace.Summary
	window   int64 // milliseconds
	requests int
	now      int64

	ids    map[uint64]uint32 // number of each block, in order of first touches
	blocks []touched         // by number
	order  stack
	once   int64
	reuses int64
	dist   histogram
	age    histogram
	within []int64 // reuses by bound of age

	windows  []Window
	sessions map[string]*session
	groups   map[string]struct{}
	gaps     histogram
}

// touched is what is kept of a block.
type touched struct {
	last   int64 // milliseconds
	window uint32
	reused bool // touched more than once
}

type session struct {
	requests int64
	last     int64
}

func (m *measurement) add(req *trace.Request) {
	m.summary.Add(req)
	m.now = max(m.now, req.Timestamp)
	if m.requests == 0 {
		m.now = req.Timestamp
	}
	m.requests++
	start := m.now - m.now%m.window
	if second := float64(start) / 1000; len(m.windows) == 0 || m.windows[len(m.windows)-1].Second < second {
		m.windows = append(m.windows, Window{Second: second})
	}
	m.windows[len(m.windows)-1].Requests++
	for _, h := range req.Hashes {
		m.touch(h)
	}
	if req.Session != "" {
		m.visit(req)
	}
}

func (m *measurement) touch(id uint64) {
	w := &m.windows[len(m.windows)-1]
	number, seen := m.ids[id]
	if !seen {
		number = uint32(len(m.blocks))
		m.ids[id] = number
		m.blocks = append(m.blocks, touched{})
		m.once++
		w.New++
	}
	b := &m.blocks[number]
	if distance := m.order.touch(number); seen {
		m.reuses++
		m.dist.add(distance)
		m.age.add(m.now - b.last)
		for i, bound := range ageBounds {
			if m.now-b.last <= 1000*bound {
				m.within[i]++
			}
		}
		if !b.reused {
			b.reused = true
			m.once--
		}
	}
	if b.window != uint32(len(m.windows)) {
		b.window = uint32(len(m.windows))
		w.Blocks++
	}
	b.last = m.now
}

// visit counts a request of a session.
func (m *measurement) visit(req *trace.Request) {
	s := m.sessions[req.Session]
	if s == nil {
		s = &session{}
		m.sessions[req.Session] = s
	} else {
		m.gaps.add(m.now - s.last)
	}
	s.requests++
	s.last = m.now
	if req.Group != "" {
		m.groups[req.Group] = struct{}{}
	}
}

func (m *measurement) stats() Stats {
	s := Stats{
		Info: m.summary.Info(), Once: m.once, Reuses: m.reuses, Distance: m.dist.distribution(), Age: m.age.distribution(),
		WindowSeconds: float64(m.window) / 1000, Windows: m.windows,
	}
	s.DedupRatio = ratio(s.Blocks, s.UniqueBlocks)
	s.OnceShare = ratio(s.Once, s.UniqueBlocks)
	for i, bound := range ageBounds {
		s.AgeShares = append(s.AgeShares, AgeShare{bound, ratio(m.within[i], m.reuses)})
	}
	if len(m.sessions) == 0 {
		return s
	}
	var turns histogram
	for _, one := range m.sessions {
		turns.add(one.requests)
	}
	s.Sessions = &Sessions{Count: len(m.sessions), Groups: len(m.groups), Requests: int(turns.sum), Turns: turns.distribution(), GapMS: m.gaps.distribution()}
	s.Sessions.Turns.Bins = nil
	return s
}

func ratio(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}
