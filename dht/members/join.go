package members

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

// attempts is how many addresses are tried at once. One that answers is
// enough: it has the others.
const attempts = 3

// seeds are the gossip addresses given to this rank. Each is tried until it is
// a member, or has answered once: after that its ranks are known by gossip.
type seeds struct {
	mu   sync.Mutex
	open map[string]bool // false: answered
	wake chan struct{}
}

func (s *seeds) add(addrs []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open, s.wake = map[string]bool{}, make(chan struct{}, 1)
	}
	for _, a := range addrs {
		s.open[a] = true
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *seeds) answered(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[addr] {
		s.open[addr] = false
	}
}

// list returns those to try: all when this rank is alone.
func (s *seeds) list(alone bool) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var addrs []string
	for a, open := range s.open {
		if open || alone {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// A rank that has joined exchanges all once more with whom it joined, so long after: ranks of
// a job start together, and gossip alone takes three times as long until those who joined
// first know of the last. Where there are many they spread over more time.
const (
	secondAfter  = 2 * time.Second
	secondSpread = 2 * time.Second // for each so many ranks:
	secondRanks  = 256
)

// secondExchange fires when a rank that knows n ranks exchanges once more.
func secondExchange(n int) <-chan time.Time {
	return time.After(secondAfter + rand.N(secondSpread*time.Duration(1+n/secondRanks)))
}

// keepJoining joins seeds and dead members while there are any. Gossip forgets
// the dead after a while; without this, two halves of the job would never find
// each other again. Pauses grow until something changes: an address may answer
// and yet not be the member that died there.
func (m *Members) keepJoining() {
	pause, before := m.opt.Timers.RejoinMin, reach{}
	var first string              // that was joined
	var exchange <-chan time.Time // once more with it
	for {
		targets, now := m.targets(m.stopped)
		if now != before || len(targets) == 0 {
			pause, before = m.opt.Timers.RejoinMin, now
		} else {
			pause = min(2*pause, m.opt.Timers.RejoinMax)
		}
		if !m.leaving.Load() {
			if joined := m.join(targets); joined != "" && first == "" {
				first, exchange = joined, secondExchange(m.list.NumMembers())
			}
		}
		select {
		case <-exchange:
			exchange = nil
			_, _ = m.list.Join([]string{first}) // if it is gone, gossip has the rest
		// Ranks that lost the same peer do not all call at the same time.
		case <-time.After(pause/2 + rand.N(pause)):
		case <-m.seeds.wake:
			before = reach{}
		case <-m.stopped.Done():
			return
		}
	}
}

// reach is how many members there are, here and lost.
type reach struct{ alive, dead int }

// target is an address to join: as it was given, and as it is dialled.
type target struct{ seed, addr string }

// targets returns a few, at random, of the addresses that should be members
// and are not.
func (m *Members) targets(ctx context.Context) ([]target, reach) {
	alive, dead := map[string]bool{m.addr: true}, map[string]bool{}
	for _, member := range m.List() {
		switch {
		case member.State != fabric.Gone:
			alive[member.Gossip] = true
		case !member.Left:
			dead[member.Gossip] = true
		}
	}
	now := reach{len(alive), len(dead)}
	var found []target
	for addr := range dead {
		found = append(found, target{addr: addr})
	}
	for _, seed := range m.seeds.list(len(alive) == 1) {
		if !alive[seed] && !dead[seed] {
			found = append(found, target{seed: seed})
		}
	}
	rand.Shuffle(len(found), func(i, k int) { found[i], found[k] = found[k], found[i] })
	var chosen []target
	for _, t := range found {
		if len(chosen) == attempts {
			break
		}
		if t.addr == "" {
			at, err := m.resolve(ctx, t.seed)
			if err != nil {
				continue
			}
			if t.addr = at.String(); alive[t.addr] {
				m.seeds.answered(t.seed)
				continue
			}
		}
		chosen = append(chosen, t)
	}
	return chosen, now
}

// resolve looks up a seed, and logs once what is wrong with it.
func (m *Members) resolve(ctx context.Context, seed string) (netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	at, err := endpoint(ctx, seed)
	if err != nil && ctx.Err() == nil && m.first("seed "+seed) {
		m.log.Warn("seed has no address", "seed", seed, "err", err)
	}
	return at, err
}

// join exchanges all that is known with each target, and returns the address of one that answered; "" for none.
func (m *Members) join(targets []target) (joined string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, t := range targets {
		all.Go(func() {
			_, err := m.list.Join([]string{t.addr})
			if err == nil {
				m.seeds.answered(t.seed)
				mu.Lock()
				joined = t.addr
				mu.Unlock()
			} else if m.stopped.Err() == nil && m.first("join "+t.addr) {
				m.log.Warn("can not join; trying on; if that rank lives, see whether a firewall lets its ports through (peers.ports)", "gossip", t.addr, "err", err)
			}
		})
	}
	all.Wait()
	return joined
}
