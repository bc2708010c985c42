package members

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"cascadekv/dht/fabric"
)

// Member is one life of a rank, and what is known of it.
type Member struct {
	Rank        fabric.Rank
	Incarnation uint64
	Addr        string       // where its fabric listens
	Host        string       // the name of its node
	Gossip      string       // host:port of its gossip
	State       fabric.State // Suspect only by our own calls
	Left        bool         // Gone because it left
}

// Kind is what happened to a member.
type Kind uint8

// The kinds of events.
const (
	Joined    Kind = iota // alive, first or again
	Updated               // its addresses changed
	Suspected             // our calls to it failed
	Restored              // suspected no more: it answered, or the suspicion expired
	Left                  // gone on its own account
	Died                  // gone by gossip's verdict
	Replaced              // another process holds the rank now: Event.Member. If the rank is our own, this process is to end
)

// String is the kind in logs.
func (k Kind) String() string {
	names := [...]string{"joined", "updated", "suspected", "restored", "left", "died", "replaced"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Event is a change, and the member after it.
type Event struct {
	Kind   Kind
	Member Member
	Why    string // for people; may be ""
}

// claim is a live process that claims to be a rank, as gossip reports it.
type claim struct {
	meta
	gossip string
}

// beats reports whether c holds the rank against the other.
func (c claim) beats(other claim) bool {
	if c.incarnation != other.incarnation {
		return c.incarnation > other.incarnation
	}
	return c.nonce > other.nonce
}

// seat is a rank's number and who holds it. The incarnation of its holder
// never goes back, even when the holder is gone.
type seat struct {
	holder   claim
	state    fabric.State
	left     bool
	failures int       // of our calls, since its last answer
	failed   time.Time // the last of them
}

func (s *seat) member() Member {
	h := s.holder
	return Member{h.rank, h.incarnation, h.addr, h.host, h.gossip, s.state, s.left}
}

func (s *seat) trust() { s.state, s.left, s.failures = fabric.Alive, false, 0 }

func (s *seat) event(k Kind, why string) []Event { return []Event{{k, s.member(), why}} }

// view is how this rank sees all ranks. It has no clock, locks or I/O:
// each method takes what happened and returns what changed.
type view struct {
	self  meta
	after int           // failed calls that make a suspicion
	last  time.Duration // how long one lasts after the last failed call
	seats map[fabric.Rank]*seat
}

func newView(self meta, gossip string, after int, last time.Duration) *view {
	return &view{
		self: self, after: after, last: last,
		seats: map[fabric.Rank]*seat{self.rank: {holder: claim{self, gossip}}},
	}
}

// appear takes gossip's report that c lives, or has changed.
func (v *view) appear(c claim) []Event {
	s := v.seats[c.rank]
	if s == nil {
		s = &seat{holder: c}
		v.seats[c.rank] = s
		return s.event(Joined, "")
	}
	old := *s
	switch {
	case c.name() == old.holder.name():
		s.holder = c
		if old.state == fabric.Gone {
			s.trust()
			return s.event(Joined, "again")
		}
		if c.addr != old.holder.addr || c.host != old.holder.host || c.gossip != old.holder.gossip {
			return s.event(Updated, "")
		}
		return nil
	case !c.beats(old.holder):
		return nil
	}
	s.holder = c
	s.trust()
	if old.state == fabric.Gone {
		return s.event(Joined, fmt.Sprintf("restarted after incarnation %d", old.holder.incarnation))
	}
	return s.event(Replaced, fmt.Sprintf("incarnation %d claims the rank of %d", c.incarnation, old.holder.incarnation))
}

// vanish takes gossip's verdict that the process of that name is gone.
func (v *view) vanish(c claim) []Event {
	s := v.seats[c.rank]
	if s == nil || s.state == fabric.Gone || s.holder.name() != c.name() || c.name() == v.self.name() {
		return nil
	}
	s.state, s.left, s.failures = fabric.Gone, s.holder.leaving || c.leaving, 0
	if s.left {
		return s.event(Left, "")
	}
	return s.event(Died, "gossip had no answer from it")
}

// fail takes a call to a rank that failed.
func (v *view) fail(rank fabric.Rank, why string, now time.Time) []Event {
	s := v.seats[rank]
	if s == nil || s.state == fabric.Gone || rank == v.self.rank {
		return nil
	}
	if now.Sub(s.failed) >= v.last {
		s.failures = 0
	}
	s.failed = now
	s.failures++
	if s.failures < v.after || s.state == fabric.Suspect {
		return nil
	}
	s.state = fabric.Suspect
	return s.event(Suspected, why)
}

// answer takes a call to a rank that succeeded.
func (v *view) answer(rank fabric.Rank) []Event {
	s := v.seats[rank]
	if s == nil || s.state == fabric.Gone {
		return nil
	}
	s.failures = 0
	if s.state != fabric.Suspect {
		return nil
	}
	s.trust()
	return s.event(Restored, "it answered")
}

// expire ends suspicions whose time is over.
func (v *view) expire(now time.Time) []Event {
	var events []Event
	for _, s := range v.seats {
		if s.state == fabric.Suspect && now.Sub(s.failed) >= v.last {
			s.trust()
			events = append(events, s.event(Restored, "the suspicion expired, and gossip holds it alive")...)
		}
	}
	slices.SortFunc(events, func(a, b Event) int { return cmp.Compare(a.Member.Rank, b.Member.Rank) })
	return events
}

// expiry is when the next suspicion ends; false while there is none.
func (v *view) expiry() (next time.Time, any bool) {
	for _, s := range v.seats {
		if end := s.failed.Add(v.last); s.state == fabric.Suspect && (!any || end.Before(next)) {
			next, any = end, true
		}
	}
	return next, any
}

// doubted counts the ranks with failed calls since their last answer.
func (v *view) doubted() int64 {
	var n int64
	for _, s := range v.seats {
		if s.failures > 0 {
			n++
		}
	}
	return n
}

// list returns every rank ever seen, by number.
func (v *view) list() []Member {
	all := make([]Member, 0, len(v.seats))
	for _, s := range v.seats {
		all = append(all, s.member())
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Compare(a.Rank, b.Rank) })
	return all
}
