package trace

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"time"
)

// ErrBadSynth marks options that describe no trace. Test with errors.Is.
var ErrBadSynth = errors.New("trace: cannot synthesise")

// SynthOptions describe a chat service: sessions arrive at random, each opens
// with one of the service's system prompts and takes some turns; every turn's
// prompt is the one before it, the answer to that, and new text. The zero
// value of each field means its default. Means are of heavy-tailed or
// exponential distributions, as noted.
type SynthOptions struct {
	Seed     uint64
	Requests int // default 2000

	SystemPrompts int     // shared prompts, default 50
	SystemTokens  int     // their mean length, default 4096, half to one and a half of it
	Zipf          float64 // popularity of the k-th prompt is k^-Zipf, default 1
	Uniform       bool    // all prompts are as popular; Zipf must be 0

	SessionsPerSecond float64       // mean arrival rate (Poisson), default 1
	Turns             int           // mean turns of a session (geometric), default 4
	UserTokens        int           // mean new text of a turn (heavy-tailed), default 1024
	AnswerTokens      int           // mean answer (exponential), default 350
	ThinkTime         time.Duration // mean pause before the next turn (exponential), default 30 s
	TokenTime         time.Duration // time the engine takes per token of answer, default 20 ms
	MaxInputTokens    int           // a session ends before its prompt grows longer; default 131072

	Hints      bool    // requests have hints: session, shared blocks, pause
	WrongHints float64 // share of the hints that are wrong, 0 to 1; the requests are the same
}

// withDefaults fills in what is zero and refuses what makes no sense.
func (o SynthOptions) withDefaults() (SynthOptions, error) {
	for _, f := range []struct {
		name      string
		value     *int
		def, most int
	}{
		{"Requests", &o.Requests, 2000, math.MaxInt32},
		{"SystemPrompts", &o.SystemPrompts, 50, 1 << 20},
		{"SystemTokens", &o.SystemTokens, 4096, 1 << 24},
		{"Turns", &o.Turns, 4, 1 << 20},
		{"UserTokens", &o.UserTokens, 1024, 1 << 20},
		{"AnswerTokens", &o.AnswerTokens, 350, 1 << 20},
		{"MaxInputTokens", &o.MaxInputTokens, 128 << 10, 1 << 28},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 0 || *f.value > f.most {
			return o, fmt.Errorf("%w: %s is %d, choose 1 to %d", ErrBadSynth, f.name, *f.value, f.most)
		}
	}
	if o.Uniform && o.Zipf != 0 {
		return o, fmt.Errorf("%w: Uniform and a Zipf of %v, choose one", ErrBadSynth, o.Zipf)
	}
	if longest := o.SystemTokens/2 + o.SystemTokens; longest >= o.MaxInputTokens {
		return o, fmt.Errorf("%w: system prompts of up to %d tokens do not fit MaxInputTokens %d, shorten them or raise it",
			ErrBadSynth, longest, o.MaxInputTokens)
	}
	for _, f := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"ThinkTime", &o.ThinkTime, 30 * time.Second}, {"TokenTime", &o.TokenTime, 20 * time.Millisecond}} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < 0 || *f.value > 24*time.Hour {
			return o, fmt.Errorf("%w: %s is %v, choose up to 24h", ErrBadSynth, f.name, *f.value)
		}
	}
	for _, f := range []struct {
		name      string
		value     *float64
		min, most float64
	}{{"Zipf", &o.Zipf, 0.01, 10}, {"SessionsPerSecond", &o.SessionsPerSecond, 0.001, 1000}} {
		if *f.value == 0 {
			*f.value = 1
		}
		if !(*f.value >= f.min && *f.value <= f.most) {
			return o, fmt.Errorf("%w: %s is %v, choose %v to %v", ErrBadSynth, f.name, *f.value, f.min, f.most)
		}
	}
	if !(o.WrongHints >= 0 && o.WrongHints <= 1) || o.WrongHints > 0 && !o.Hints {
		return o, fmt.Errorf("%w: WrongHints is %v, choose 0 to 1, with Hints", ErrBadSynth, o.WrongHints)
	}
	if o.Uniform {
		o.Zipf = 0
	}
	return o, nil
}

// Synth is a Source of made-up requests: the same bytes for the same options,
// on any machine. It is not safe for concurrent use.
type Synth struct {
	o        SynthOptions
	arrivals *Arrivals
	systems  []system
	popular  []uint64 // running sums of the prompts' weights
	waiting  sessionHeap
	sessions uint64 // arrived so far
	arrival  int64  // of the next session, milliseconds
	nextID   uint64
	left     int
	errors   random // decides which hints are wrong
}

// system is a shared prompt. Blocks get their ids when a request first shows
// them, so that ids count up in order of appearance as in Mooncake's traces.
type system struct {
	tokens int
	ids    []uint64
}

// session is a conversation between two of its turns.
type session struct {
	number uint64
	at     int64 // of its next turn, milliseconds
	rng    random
	tokens int      // length of the next prompt
	ids    []uint64 // whole blocks of the prompt before
	fresh  *system  // its system prompt, until its first turn
	shared int      // whole blocks of its system prompt
}

// NewSynth returns a Source of o.Requests requests. The error matches ErrBadSynth.
func NewSynth(o SynthOptions) (*Synth, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Synth{o: o, left: o.Requests, arrivals: NewArrivals(o.Seed, o.SessionsPerSecond), errors: newRandom(o.Seed, math.MaxUint64)}
	s.arrival = s.arrivals.Next()
	s.systems = make([]system, o.SystemPrompts)
	lengths := newRandom(o.Seed, 1)
	sum := uint64(0)
	for i := range s.systems {
		s.systems[i].tokens = o.SystemTokens/2 + int(lengths.below(uint64(o.SystemTokens)+1))
		sum += zipfWeight(i+1, o.Zipf)
		s.popular = append(s.popular, sum)
	}
	return s, nil
}

// Next implements Source.
func (s *Synth) Next(req *Request) error {
	if s.left == 0 {
		return io.EOF
	}
	s.left--
	for len(s.waiting) == 0 || s.arrival <= s.waiting[0].at {
		s.arrive()
	}
	ses := s.waiting[0]
	*req = Request{Timestamp: ses.at, InputTokens: ses.tokens, Hashes: append(req.Hashes[:0], s.prompt(ses)...)}
	req.OutputTokens = 1 + int(ses.rng.spread(int64(s.o.AnswerTokens)))
	pause, more := s.turn(ses, req.OutputTokens)
	if s.o.Hints {
		req.Session, req.SharedBlocks = sessionName(ses.number), ses.shared
		if more {
			req.Pause = max(1, pause)
		}
		s.mislead(req)
	}
	return nil
}

func sessionName(number uint64) string { return "s" + strconv.FormatUint(number, 10) }

// mislead makes a share of the hints wrong: the name of another session, any
// number of shared blocks, a pause where the session ends and none where it
// goes on.
func (s *Synth) mislead(req *Request) {
	wrong := func() bool { return s.errors.below(1e6) < uint64(s.o.WrongHints*1e6) }
	if wrong() {
		req.Session = sessionName(1 + s.errors.below(s.sessions))
	}
	if wrong() {
		req.SharedBlocks = int(s.errors.below(uint64(len(req.Hashes)) + 1))
	}
	if !wrong() {
		return
	}
	if req.Pause > 0 {
		req.Pause = 0
	} else {
		req.Pause = 1 + s.errors.spread(s.o.ThinkTime.Milliseconds())
	}
}

// arrive adds the next session.
func (s *Synth) arrive() {
	s.sessions++
	ses := &session{number: s.sessions, at: s.arrival, rng: newRandom(s.o.Seed, s.sessions+1)}
	pick := ses.rng.below(s.popular[len(s.popular)-1])
	ses.fresh = &s.systems[sort.Search(len(s.popular), func(i int) bool { return pick < s.popular[i] })]
	ses.tokens = min(ses.fresh.tokens+s.userText(ses), s.o.MaxInputTokens)
	heap.Push(&s.waiting, ses)
	s.arrival = s.arrivals.Next()
}

func (s *Synth) userText(ses *session) int {
	return 1 + int(ses.rng.heavy(int64(s.o.UserTokens)))
}

// prompt extends the session's blocks to its prompt and returns them. A last
// block that is not whole has an id of its own: the next turn's block in its
// place holds more text.
func (s *Synth) prompt(ses *session) []uint64 {
	if sys := ses.fresh; sys != nil {
		sys.ids = s.name(sys.ids, sys.tokens/BlockTokens)
		ses.ids = append(ses.ids, sys.ids...)
		ses.shared = len(sys.ids)
		ses.fresh = nil
	}
	ses.ids = s.name(ses.ids, blocks(ses.tokens, BlockTokens))
	all := ses.ids
	ses.ids = ses.ids[:ses.tokens/BlockTokens]
	return all
}

// name adds new ids until there are n.
func (s *Synth) name(ids []uint64, n int) []uint64 {
	for len(ids) < n {
		ids = append(ids, s.nextID)
		s.nextID++
	}
	return ids
}

// turn prepares the first waiting session's next turn, or ends it. It returns
// the pause before that turn in milliseconds, and whether there is one.
func (s *Synth) turn(ses *session, answer int) (pause int64, more bool) {
	pause = ses.rng.spread(s.o.ThinkTime.Milliseconds())
	ses.at += int64(answer)*s.o.TokenTime.Milliseconds() + pause
	ses.tokens += answer + s.userText(ses)
	if ses.rng.below(uint64(s.o.Turns)) == 0 || ses.tokens > s.o.MaxInputTokens {
		heap.Pop(&s.waiting)
		return 0, false
	}
	heap.Fix(&s.waiting, 0)
	return pause, true
}

// sessionHeap orders sessions by their next turn, then by arrival.
type sessionHeap []*session

func (h sessionHeap) Len() int { return len(h) }
func (h sessionHeap) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].number < h[j].number
}
func (h sessionHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *sessionHeap) Push(x any)   { *h = append(*h, x.(*session)) }
func (h *sessionHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
