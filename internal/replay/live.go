package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cascadekv/cascade"
	"cascadekv/internal/resp"
)

const (
	liveTimeout = 30 * time.Second // a rank answers within 5 s, a full pipeline of puts within a few more
	maxPipeline = 64               // commands in flight, few enough that their text fits the socket's buffers
	maxProbe    = 16 << 10         // keys of one PROBE, far below the protocol's 4 MiB of arguments
)

// LiveTarget replays against a rank over its socket.
type LiveTarget struct {
	o LiveOptions
}

// LiveOptions say where a rank is.
type LiveOptions struct {
	Network    string // "unix" or "tcp"
	Addr       string // path, or host:port
	Password   string // for AUTH; "" means none is needed
	Namespace  string // "" means that of Namespace
	BlockBytes int    // size of every block
	ServerUIDs []int  // users whose rank is trusted, besides the caller's own and root
}

// NewLiveTarget returns a Target on the rank. Nothing is connected yet.
func NewLiveTarget(o LiveOptions) *LiveTarget {
	if o.Namespace == "" {
		o.Namespace = Namespace(o.BlockBytes)
	}
	return &LiveTarget{o: o}
}

func (t *LiveTarget) dial() (*resp.Client, error) {
	c, err := resp.Dial(t.o.Network, t.o.Addr, liveTimeout, t.o.ServerUIDs...)
	if errors.Is(err, resp.ErrForeignServer) {
		return nil, fmt.Errorf("replay: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("replay: no rank at %s: %w; start cascaded or correct the address", t.o.Addr, err)
	}
	if t.o.Password != "" {
		if _, err := c.Do("AUTH", t.o.Password); err != nil {
			_ = c.Close() // the refusal is what matters
			return nil, fmt.Errorf("replay: rank at %s: %w", t.o.Addr, err)
		}
	}
	return c, nil
}

// Session implements Target.
func (t *LiveTarget) Session(ctx context.Context) (Session, error) {
	c, err := t.dial()
	if err != nil {
		return nil, err
	}
	room, err := newScratch(t.o.BlockBytes, maxPipeline)
	if err != nil {
		_ = c.Close() // the lack of memory is what matters
		return nil, err
	}
	return &liveSession{t: t, c: c, room: room}, nil
}

// Stats implements Target.
func (t *LiveTarget) Stats(context.Context) (TargetStats, error) {
	c, err := t.dial()
	if err != nil {
		return TargetStats{}, err
	}
	defer c.Close()
	r, err := c.Do("CASCADE.STATS")
	if err != nil {
		return TargetStats{}, fmt.Errorf("replay: statistics of the rank at %s: %w", t.o.Addr, err)
	}
	var s cascade.Stats
	if err := json.Unmarshal(r.Str, &s); err != nil {
		return TargetStats{}, fmt.Errorf("replay: statistics of the rank at %s: %w; is it of this version?", t.o.Addr, err)
	}
	return targetStats(s), nil
}

// Close implements Target. The rank lives on.
func (t *LiveTarget) Close(context.Context) error { return nil }

type liveSession struct {
	t     *LiveTarget
	c     *resp.Client
	room  *scratch
	tiers []tierCount // of the last probe: GET does not say who served it
}

type tierCount struct {
	name string
	left int
}

// Probe implements Session.
func (s *liveSession) Probe(ctx context.Context, keys []string) (int, error) {
	s.tiers = s.tiers[:0]
	hits := 0
	for len(keys) > 0 {
		part := keys[:min(len(keys), maxProbe)]
		keys = keys[len(part):]
		args := append(append(make([]string, 0, 2+len(part)), "CASCADE.PROBE", s.t.o.Namespace), part...)
		r, err := s.c.Do(args...)
		if err != nil {
			return hits, fmt.Errorf("replay: probe of %d blocks: %w", len(part), err)
		}
		s.noteTiers(r.Field("tiers"))
		n := int(r.Field("hits").Int)
		if n < 0 || n > len(part) {
			return hits, fmt.Errorf("replay: probe of %d blocks found %d: is this a rank of this version?", len(part), n)
		}
		if hits += n; n < len(part) {
			break
		}
	}
	return hits, ctx.Err()
}

func (s *liveSession) noteTiers(m resp.Reply) {
	for i := 0; i+1 < len(m.Elems); i += 2 {
		s.tiers = append(s.tiers, tierCount{m.Elems[i].Text(), int(m.Elems[i+1].Int)})
	}
}

// nextTier deals the last probe's tiers out: which block a tier serves is not
// known, how many it serves is.
func (s *liveSession) nextTier() string {
	for i := range s.tiers {
		if s.tiers[i].left > 0 {
			s.tiers[i].left--
			return s.tiers[i].name
		}
	}
	return "unknown"
}

// GetBatch implements Session.
func (s *liveSession) GetBatch(ctx context.Context, keys []string, visit func(int, []byte, string)) (int, error) {
	served, hole := 0, false
	for at := 0; at < len(keys) && !hole; {
		if err := ctx.Err(); err != nil {
			return served, err
		}
		n := min(len(keys)-at, maxPipeline)
		for _, key := range keys[at : at+n] {
			s.c.Send("CASCADE.GET", "NS", s.t.o.Namespace, key)
		}
		if err := s.c.Flush(); err != nil {
			return served, fmt.Errorf("replay: get of %d blocks: %w", n, err)
		}
		for i := at; i < at+n; i++ {
			data := s.room.block(0)
			size, err := s.c.ReceiveInto(data)
			switch {
			case errors.Is(err, resp.ErrNull):
				hole = true
				continue
			case errors.Is(err, resp.ErrShortBuffer):
				size = 0 // a block of another size: every byte is wrong
			case err != nil:
				return served, fmt.Errorf("replay: get of block %s: %w", keys[i], err)
			}
			if !hole {
				visit(i, data[:size], s.nextTier())
				served++
			}
		}
		at += n
	}
	return served, nil
}

// PutBatch implements Session.
func (s *liveSession) PutBatch(ctx context.Context, keys []string, first int, fill func(int, []byte)) (int, error) {
	stored, full := 0, false
	for at := first; at < len(keys) && !full; {
		if err := ctx.Err(); err != nil {
			return stored, err
		}
		n := min(len(keys)-at, s.room.blocks())
		for j := range n {
			data := s.room.block(j)
			fill(at+j, data)
			s.sendPut(keys, at+j, data)
		}
		if err := s.c.Flush(); err != nil {
			return stored, fmt.Errorf("replay: put of %d blocks: %w", n, err)
		}
		for range n {
			ok, err := s.receivePut()
			if err != nil {
				return stored, err
			}
			if full = full || !ok; ok {
				stored++
			}
		}
		at += n
	}
	return stored, nil
}

func (s *liveSession) sendPut(keys []string, i int, data []byte) {
	args := [...]string{"CASCADE.PUT", keys[i], "NS", s.t.o.Namespace, "PARENT", ""}
	if i == 0 {
		s.c.SendValue(2, data, args[:4]...)
		return
	}
	args[5] = keys[i-1]
	s.c.SendValue(2, data, args[:]...)
}

// receivePut reports whether a put was stored; false when there was no room.
func (s *liveSession) receivePut() (bool, error) {
	_, err := s.c.Receive()
	var refused *resp.ServerError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &refused) && refused.Code() == "OOM":
		return false, nil
	}
	return false, fmt.Errorf("replay: put: %w", err)
}

// Close implements Session.
func (s *liveSession) Close() error {
	return errors.Join(s.c.Close(), s.room.close())
}
