package slackbench

import (
	"cascadekv/gpu/slack"
)

// order is a way to order transfers.
type order interface {
	begin(r slack.Request) ([]slack.Launch, error)
	layer(l int) (slack.Decision, error)
	queue(iocbs int) error // what the layer just planned makes
	prefilled() []slack.Launch
	decode(tokens int) []slack.Launch
	writes() int
}

// planned is the order of gpu/slack.
type planned struct{ s *slack.Scheduler }

func (p planned) begin(r slack.Request) ([]slack.Launch, error) {
	d, err := p.s.Begin(r)
	return d.Launches, err
}

func (p planned) layer(l int) (slack.Decision, error) { return p.s.Layer(l) }
func (p planned) queue(n int) error                   { return p.s.Queue(n) }
func (p planned) prefilled() []slack.Launch           { return nil }
func (p planned) decode(tokens int) []slack.Launch    { return p.s.Decode(tokens).Launches }
func (p planned) writes() int                         { return p.s.Writes() }

// simple is what a program does that plans nothing. All launches take the SMs that
// the model has for them.
type simple struct {
	m       *Model
	sync    bool // all reads before the first layer, all writes behind the last one
	reads   []int
	pending int // writes
}

func (s *simple) launch(k slack.Kind, n int) []slack.Launch {
	if n == 0 {
		return nil
	}
	return []slack.Launch{{Kind: k, IOCBs: n, SMs: s.m.launchSMs(n)}}
}

func (s *simple) begin(r slack.Request) ([]slack.Launch, error) {
	s.reads = r.Reads
	all := 0
	for _, n := range r.Reads {
		all += n
	}
	switch {
	case all == 0:
		return nil, nil
	case s.sync:
		return s.launch(slack.Read, all), nil
	}
	return s.launch(slack.Read, r.Reads[0]), nil
}

func (s *simple) layer(l int) (d slack.Decision, err error) {
	if s.sync {
		return d, nil
	}
	if l+1 < len(s.reads) {
		d.Launches = s.launch(slack.Read, s.reads[l+1])
	}
	d.Launches = append(d.Launches, s.prefilled()...)
	return d, nil
}

func (s *simple) queue(n int) error {
	s.pending += n
	return nil
}

func (s *simple) prefilled() []slack.Launch {
	n := s.pending
	s.pending = 0
	return s.launch(slack.Write, n)
}

func (s *simple) decode(int) []slack.Launch { return nil }
func (s *simple) writes() int               { return s.pending }
