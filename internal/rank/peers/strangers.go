package peers

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"cascadekv/dht/fabric/tcp"
	"cascadekv/internal/loglimit"
)

// strangers logs failed connections to the fabric, and only counts a flood of them:
// anybody who reaches the port can cause one.
type strangers struct {
	log     *slog.Logger
	limit   loglimit.Limiter
	pending atomic.Bool // rest will be called
}

// observe is for tcp.Options.Observe.
func (s *strangers) observe(err error) {
	n, ok := s.limit.Allow(strangerKey(err))
	switch {
	case !ok:
		if s.pending.CompareAndSwap(false, true) {
			time.AfterFunc(loglimit.DefaultEvery, s.rest)
		}
	case n > 0:
		s.log.Warn("connection of another rank", "err", err, "suppressed", n)
	default:
		s.log.Warn("connection of another rank", "err", err)
	}
}

// strangerKey is the address of the other side: a rank of the job with a wrong
// secret is named, whatever strangers do beside it.
func strangerKey(err error) string {
	stream, ok := errors.AsType[*tcp.StreamError](err)
	if !ok {
		return "accept"
	}
	host, _, _ := net.SplitHostPort(stream.Remote.String())
	if stream.Proved {
		return host + " " + stream.From.String()
	}
	return host
}

// rest logs at the end of a flood how many lines were left out.
func (s *strangers) rest() {
	s.pending.Store(false)
	if n := s.limit.Rest(); n > 0 {
		s.log.Warn("more connections to the fabric ended with an error", "suppressed", n)
	}
}
