package fromtext

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"cascadekv/internal/trace"
)

// ErrBadOptions marks options that describe no trace. Test with errors.Is.
var ErrBadOptions = errors.New("fromtext: cannot make this trace")

// Options say how conversations become requests. The zero value of each field
// means its default.
type Options struct {
	CharsPerToken float64 // characters of a token, 1 to 100; default 4, usual for English
	BlockTokens   int     // tokens of a block; default trace.BlockTokens

	RPS    float64 // mean requests a second, 0.001 to 10,000; default 1
	Even   bool    // requests come at even distances; default: at random, as a Poisson process
	Active int     // sessions at a time; default 64, of a preset as many as it has
	Random bool    // the next request is of any session under way; default: of one after the other, of a preset one task after the other
	Seed   uint64  // of the arrivals, the seats, and a preset's lengths
	Limit  int     // requests; default all there are, of a preset 4,000

	tasks  int // of a preset
	groups int // of seats
}

// Bounds that keep a request within what a trace can say.
const (
	maxActive      = 1 << 20
	maxBlockTokens = 1 << 20
	presetRequests = 4000
)

func (o Options) withDefaults() (Options, error) {
	if o.CharsPerToken == 0 {
		o.CharsPerToken = 4
	}
	if o.BlockTokens == 0 {
		o.BlockTokens = trace.BlockTokens
	}
	if o.RPS == 0 {
		o.RPS = 1
	}
	if o.Active == 0 {
		o.Active = 64
	}
	for _, f := range []struct {
		name             string
		value, low, high float64
	}{
		{"CharsPerToken", o.CharsPerToken, 1, 100}, {"BlockTokens", float64(o.BlockTokens), 1, maxBlockTokens},
		{"RPS", o.RPS, 0.001, 10_000}, {"Active", float64(o.Active), 1, maxActive}, {"Limit", float64(o.Limit), 0, 1 << 40},
	} {
		if !(f.value >= f.low && f.value <= f.high) {
			return o, fmt.Errorf("%w: %s is %v, choose %v to %v", ErrBadOptions, f.name, f.value, f.low, f.high)
		}
	}
	switch {
	case o.Random:
		o.groups = 1
	case o.tasks > 0:
		o.groups = o.tasks
	default:
		o.groups = o.Active
	}
	return o, nil
}

// Source is a trace.Source of the requests of conversations. It keeps the
// sessions that are under way and 24 bytes for each distinct block. It is not
// safe for concurrent use.
type Source struct {
	o        Options
	sessions func(number int) (*session, error) // the next one for a seat, io.EOF behind the last
	groups   [][]seat
	turn     int // group of the next request
	left     int // requests until the limit, if there is one
	sent     int64
	ids      map[digest]uint64
	arrivals *trace.Arrivals
	choice   *rand.Rand
	skipped  int
}

// seat is a place for one session that is under way, nil before its first.
// Seats are in groups: requests come from one group after the other, and within
// a group from a seat at random.
type seat struct {
	number  int // of a preset's task
	session *session
}

// New returns a source of the conversations in r: ShareGPT's or OpenOrca's JSON,
// a list or one record after the other, compressed by gzip or not. name stands
// for r in errors, which match trace.ErrBadTrace or ErrBadOptions.
func New(r io.Reader, name string, o Options) (*Source, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	t, err := newText(r, name)
	if err != nil {
		return nil, err
	}
	s := newSource(o)
	s.sessions = func(int) (*session, error) {
		for {
			record, err := t.next()
			if err != nil {
				return nil, err
			}
			if one := s.o.session(&record, t.read); len(one.turns) > 0 {
				return one, nil
			}
			s.skipped++
		}
	}
	return s, nil
}

func newSource(o Options) *Source {
	s := &Source{o: o, left: o.Limit, ids: map[digest]uint64{}, arrivals: trace.NewArrivals(o.Seed, o.RPS), choice: rand.New(rand.NewPCG(o.Seed, 1))}
	s.groups = make([][]seat, o.groups)
	for i := range o.Active {
		g := i % o.groups
		s.groups[g] = append(s.groups[g], seat{number: i % max(1, o.tasks)})
	}
	return s
}

// Skipped returns how many conversations without an answered question were
// passed over so far.
func (s *Source) Skipped() int { return s.skipped }

// Next implements trace.Source.
func (s *Source) Next(req *trace.Request) error {
	if s.o.Limit > 0 && s.left == 0 {
		return io.EOF
	}
	one, err := s.next()
	if err != nil {
		return err
	}
	s.left--
	t := one.turns[0]
	one.turns = one.turns[1:]
	*req = trace.Request{Timestamp: s.arrival(), InputTokens: t.tokens, OutputTokens: t.output,
		Hashes: req.Hashes[:0], Session: one.name, SharedBlocks: t.shared}
	for _, d := range one.blocks[:t.whole] {
		req.Hashes = append(req.Hashes, s.id(d))
	}
	for _, d := range t.own {
		req.Hashes = append(req.Hashes, s.id(d))
	}
	if t.partial {
		req.Hashes = append(req.Hashes, s.id(t.last))
	}
	return nil
}

// next returns the session of the next request. A seat whose session is over
// takes the next one; where there is none, the seat goes.
func (s *Source) next() (*session, error) {
	for len(s.groups) > 0 {
		s.turn %= len(s.groups)
		g := s.groups[s.turn]
		i := 0
		if len(g) > 1 {
			i = s.choice.IntN(len(g))
		}
		if g[i].session != nil && len(g[i].session.turns) > 0 {
			s.turn++
			return g[i].session, nil
		}
		one, err := s.sessions(g[i].number)
		switch {
		case err == nil:
			s.turn++
			g[i].session = one
			return one, nil
		case err != io.EOF:
			return nil, err
		case len(g) > 1:
			s.groups[s.turn] = slices.Delete(g, i, i+1)
		default:
			s.groups = slices.Delete(s.groups, s.turn, s.turn+1)
		}
	}
	return nil, io.EOF
}

func (s *Source) arrival() (at int64) {
	if !s.o.Even {
		return s.arrivals.Next()
	}
	at = int64(float64(s.sent) * 1000 / s.o.RPS)
	s.sent++
	return at
}

// id numbers blocks in order of appearance.
func (s *Source) id(d digest) uint64 {
	id, seen := s.ids[d]
	if !seen {
		id = uint64(len(s.ids))
		s.ids[d] = id
	}
	return id
}
