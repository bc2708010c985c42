package slack

import (
	"errors"
	"fmt"
	"time"
)

// ErrRequest marks a request that the scheduler cannot plan.
var ErrRequest = errors.New("slack: not a request")

// maxQueued bounds counts that callers hand in, so that sums do not overflow.
const maxQueued = 1 << 40

// Request is one prefill: a prompt of which a prefix is restored.
type Request struct {
	Input  int   // tokens that are computed
	Prefix int   // tokens before them, restored or in device memory already
	Reads  []int // IOCBs that each layer waits for; as many as layers, or none
}

// Launch is IOCBs to enqueue now, together: of reads the next ones in the order of
// layers, of writes the longest queued.
type Launch struct {
	Kind     Kind
	IOCBs    int
	SMs      int           // to run on
	Required bool          // launched because a layer waits, not because it fits
	Fence    bool          // to start only when all launches of the other kind have ended
	Estimate time.Duration // from its start to its end
}

// Decision is what becomes of one window.
type Decision struct {
	Window   Window
	Launches []Launch // all of one kind, one after the other. The caller's until the next call
}

// Scheduler plans the transfers of one engine on one GPU. It is used by one
// goroutine at a time, and allocates nothing once it has been used.
type Scheduler struct {
	p       *Profile
	request Request
	reads   []int // that are left, by layer
	left    int   // sum of reads
	first   int   // layer before which no reads are left
	writes  int64 // queued
	last    Kind  // of the last launch
	any     bool  // there was one
	out     []Launch
	stats   Stats
}

// New returns a scheduler with nothing to do. The profile must not change any more.
// Errors: ErrProfile.
func New(p *Profile) (*Scheduler, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &Scheduler{p: p, reads: make([]int, p.Layers), out: make([]Launch, 0, 3)}, nil
}

// Begin starts a prefill and returns the reads of its first layer, which nothing
// can hide. What the one before had still to read is forgotten: it has ended, or was given
// up. Its writes stay queued. Errors: ErrRequest.
func (s *Scheduler) Begin(r Request) (Decision, error) {
	if r.Input < 0 || r.Prefix < 0 || len(r.Reads) != 0 && len(r.Reads) != len(s.reads) {
		return Decision{}, fmt.Errorf("%w: %d tokens behind %d, reads of %d layers where the model has %d", ErrRequest, r.Input, r.Prefix, len(r.Reads), len(s.reads))
	}
	left := 0
	for l, n := range r.Reads {
		if n < 0 || n > maxQueued/maxLayers {
			return Decision{}, fmt.Errorf("%w: %d IOCBs for layer %d", ErrRequest, n, l)
		}
		left += n
	}
	clear(s.reads)
	copy(s.reads, r.Reads)
	s.request, s.request.Reads, s.left, s.first = r, nil, left, 0
	s.stats.Requests++
	s.out = s.out[:0]
	s.launch(Read, s.reads[0], true)
	return Decision{Launches: s.out}, nil
}

// Layer plans the window of layer l, before its compute is enqueued. Errors:
// ErrRequest, if the model has no such layer.
func (s *Scheduler) Layer(l int) (Decision, error) {
	if l < 0 || l >= len(s.reads) {
		return Decision{}, fmt.Errorf("%w: layer %d of %d", ErrRequest, l, len(s.reads))
	}
	s.out = s.out[:0]
	s.stats.Layers++
	late := 0
	for i := s.first; i <= l; i++ {
		late += s.reads[i]
	}
	s.launch(Read, late, true)
	w := s.p.LayerWindow(s.request.Input, s.request.Prefix)
	switch {
	case s.left > 0:
		next := 0
		if l+1 < len(s.reads) {
			next = s.reads[l+1]
		}
		first := s.p.Launch(Read, next)
		if first.Time > w.Time || first.SMs > w.SMs {
			s.launch(Read, next, true)
			break
		}
		s.launch(Read, next, false)
		s.launch(Read, s.p.Fit(Read, Window{w.Time - first.Time, w.SMs}, s.left), false)
	case late == 0:
		s.launchWrites(w)
	}
	return Decision{w, s.out}, nil
}

// Decode plans the window of one decode step, for a sequence of that many tokens;
// of a batch the shortest one, which takes the least time.
func (s *Scheduler) Decode(tokens int) Decision {
	s.out = s.out[:0]
	s.stats.DecodeSteps++
	w := s.p.DecodeWindow(tokens)
	if s.left == 0 {
		s.launchWrites(w)
	}
	return Decision{w, s.out}
}

// Idle plans time without compute: the largest launch of writes there is.
func (s *Scheduler) Idle() Decision {
	s.out = s.out[:0]
	w := Window{maxTime, s.p.SMs}
	if s.left == 0 {
		s.launchWrites(w)
	}
	return Decision{w, s.out}
}

func (s *Scheduler) launchWrites(w Window) {
	n := s.p.Fit(Write, w, int(s.writes))
	if n == 0 && s.writes > 0 {
		s.stats.Deferred++
	}
	s.launch(Write, n, false)
}

// launch takes n IOCBs from what is left and adds them to the decision.
func (s *Scheduler) launch(k Kind, n int, required bool) {
	if n <= 0 {
		return
	}
	kernel := s.p.Launch(k, n)
	s.out = append(s.out, Launch{Kind: k, IOCBs: n, SMs: kernel.SMs, Required: required, Fence: s.any && s.last != k, Estimate: kernel.Time})
	s.last, s.any = k, true
	if k == Write {
		s.writes -= int64(n)
		s.stats.Writes += uint64(n)
		return
	}
	s.stats.Reads += uint64(n)
	if required {
		s.stats.RequiredReads += uint64(n)
	}
	s.left -= n
	for n > 0 {
		part := min(n, s.reads[s.first])
		s.reads[s.first] -= part
		if n -= part; n > 0 || s.reads[s.first] == 0 && s.first+1 < len(s.reads) {
			s.first++
		}
	}
}

// Queue adds n IOCBs of writes: what a layer whose compute is enqueued has made.
// Errors: ErrRequest.
func (s *Scheduler) Queue(n int) error {
	if n < 0 || int64(n) > maxQueued-s.writes {
		return fmt.Errorf("%w: %d writes, behind %d that are queued", ErrRequest, n, s.writes)
	}
	s.writes += int64(n)
	return nil
}

// Forget takes n IOCBs of writes out of the queue, or all: the engine takes their
// blocks back before they were written, and what was in them is a miss later.
func (s *Scheduler) Forget(n int) {
	n = int(min(int64(max(n, 0)), s.writes))
	s.writes -= int64(n)
	s.stats.Forgotten += uint64(n)
}

// Reads returns how many IOCBs of reads the request has left to launch.
func (s *Scheduler) Reads() int { return s.left }

// Writes returns how many IOCBs of writes are queued.
func (s *Scheduler) Writes() int { return int(s.writes) }
