package cascade

import (
	"context"
	"time"

	"cascadekv/cascade/eviction"
	"cascadekv/cascade/load"
	"cascadekv/cascade/policy"
	"cascadekv/cascade/residency"
)

// Hint is what a client declares of how a chain will be used. Nothing needs it, and a wrong one costs little.
type Hint struct {
	Shared int           // leading keys of a prompt that many conversations share
	Due    time.Duration // until the chain is asked for next; 0: not known
	Soon   bool          // it is asked for at once: Due does not count
}

// soonBlocks and soonBytes bound what hints, and look-ups, have on its way from this rank's own files at once, all together:
// gets wait behind it for their turn to read.
const (
	soonBlocks = 32
	soonBytes  = 64 << 20
)

// Declare takes in what is declared of a chain of keys, head first, and returns how many of them have blocks on
// this rank: only those are reached. What is asked for soon is on its way into memory when it returns, or its
// first blocks are, as with Probe. It is no access, and leases nothing.
func Declare(ctx context.Context, s *Store, ns string, keys []string, h Hint) (reached int) {
	if h.Soon {
		h.Due = 1
		lookUp(ctx, s, ns, keys).prefetch(s, len(keys))
	}
	var cold []*residency.Block
	for end := len(keys); end > 0; { // so that the head is the youngest
		at := (end - 1) / residency.LookStep * residency.LookStep
		some := declareSome(s, ns, keys[at:end], policy.Request{Shared: h.Shared - at, Due: h.Due})
		reached += len(some)
		cold = append(some, cold...)
		end = at
	}
	if h.Soon {
		bringUp(s, cold)
	}
	return reached
}

// declareSome passes the policies what is declared of some keys, and returns the blocks of those that have any.
func declareSome(s *Store, ns string, keys []string, hint policy.Request) (reached []*residency.Block) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	shared := 0
	for i, k := range keys {
		n := residency.VisibleLocked(s.state, ns, k)
		if n == nil {
			continue
		}
		if i < hint.Shared {
			shared++
		}
		s.state.Requests.MentionLocked(residency.BlockOf(n))
		reached = append(reached, residency.BlockOf(n))
	}
	hint.Shared = shared
	s.state.Requests.HintLocked(hint)
	return reached
}

// soon is what all hints and look-ups together have on its way from this rank's own files. Guarded by State.Mu.
type soon struct {
	blocks int
	bytes  int64
}

func (q *soon) add(blocks int, bytes int64) {
	q.blocks += blocks
	q.bytes += bytes
}

// prefetchOwn starts to bring into memory the first blocks of a chain, which was looked up, that are in this rank's own
// files alone: while it pays, for they take room.
func prefetchOwn[K string | []byte](s *Store, ns string, keys []K) {
	if s.state.Cold == nil || !s.state.Requests.Prefetched.Pays() {
		return
	}
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	var blocks []*residency.Block
	for _, key := range keys[:min(len(keys), residency.LookStep)] {
		if n := residency.VisibleLocked(s.state, ns, string(key)); n != nil && !residency.BlockOf(n).InAny() {
			if blocks = append(blocks, residency.BlockOf(n)); len(blocks) == load.PrefetchBlocks {
				break
			}
		}
	}
	bringUpLocked(s, blocks, true)
}

// bringUp starts to bring into memory what is in this rank's own files alone, as far as the policy lets it in, and
// until as much is on its way as hints may have.
func bringUp(s *Store, blocks []*residency.Block) {
	s.state.Mu.Lock()
	defer s.state.Mu.Unlock()
	bringUpLocked(s, blocks, false)
}

// bringUpLocked is bringUp. guess: nobody said that the blocks will be asked for.
func bringUpLocked(s *Store, blocks []*residency.Block, guess bool) {
	var fresh, all []*load.Fetch
	var taken soon
	for ; len(blocks) > 0 && s.soon.blocks < soonBlocks && s.soon.bytes < soonBytes; blocks = blocks[1:] {
		b := blocks[0]
		if b.InAny() || b.Loading { // it is here, or on its way
			continue
		}
		if guess && s.state.Requests.Prefetched.WaitsLocked(b) {
			continue
		}
		if guess && !s.state.Requests.Prefetched.RoomLocked() {
			break
		}
		if f := s.load.JoinColdLocked(b, nil, eviction.Unheld, &fresh); f != nil {
			all = append(all, f)
			s.soon.add(1, b.Info.Size)
			taken.add(1, b.Info.Size)
			if guess {
				s.state.Requests.Prefetched.AddLocked(b)
			}
		}
	}
	s.load.StartLocked(fresh)
	if len(all) == 0 {
		return
	}
	s.state.Workers.Go(func() { // nobody waits for it
		ctx, cancel := s.state.UntilFetched(context.Background())
		defer cancel()
		for _, f := range all {
			if v := s.load.Await(ctx, f); v != nil {
				v.Release()
			}
		}
		s.state.Mu.Lock()
		defer s.state.Mu.Unlock()
		s.soon.add(-taken.blocks, -taken.bytes)
	})
}
