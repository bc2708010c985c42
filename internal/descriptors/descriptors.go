package descriptors

import (
	"fmt"
	"math"
	"sort"

	"golang.org/x/sys/unix"
)

// Own is what a rank needs for itself where the limit allows it: its listeners,
// log, arena, index and pipes, and the runtime.
const Own = 128

// Unbounded is a wish for whatever is left.
const Unbounded = math.MaxInt

// Wishes are how many descriptors each kind would take.
type Wishes struct {
	Connections int // of clients: max_connections
	Files       int // segments of the lustre tier
	Peers       int // streams to and from other ranks
	Shared      int // memory that clients share: regions and their eventfds, touch rings, holds
}

// Split is how many descriptors each kind may have. A kind that wishes any has
// one at least.
type Split struct {
	Own, Connections, Files, Peers, Shared int
}

// Wishes of kinds of which no configuration says how many there are.
const (
	PeersWished  = 4096
	SharedWished = 2048
)

// Want are the wishes of a rank that takes so many connections, and has a unix
// socket, a lustre tier and other ranks to talk to, or not.
func Want(connections int, socket, lustre, peers bool) Wishes {
	w := Wishes{Connections: connections}
	if socket {
		w.Shared = SharedWished
	}
	if lustre {
		w.Files = Unbounded
	}
	if peers {
		w.Peers = PeersWished
	}
	return w
}

// Shares of what is left beside Own where not every wish can be met.
const (
	connectionsWeight = 8
	filesWeight       = 4
	peersWeight       = 2
	sharedWeight      = 2
)

// Divide splits limit descriptors. A kind that wishes less than its share leaves
// the rest to the others.
func Divide(limit uint64, w Wishes) Split {
	total := int(min(limit, math.MaxInt/16))
	s := Split{Own: min(Own, total/2)}
	kinds := []*kind{
		{connectionsWeight, w.Connections, &s.Connections}, {filesWeight, w.Files, &s.Files},
		{peersWeight, w.Peers, &s.Peers}, {sharedWeight, w.Shared, &s.Shared},
	}
	left := total - s.Own
	for {
		weight := 0
		for _, k := range kinds {
			weight += k.weight
		}
		met := false
		rest, each := kinds[:0:0], left
		for _, k := range kinds {
			if k.wish > each*k.weight/weight {
				rest = append(rest, k)
				continue
			}
			*k.gets = max(0, k.wish)
			left -= *k.gets
			met = true
		}
		kinds = rest
		if len(kinds) == 0 {
			return s
		}
		if met {
			continue
		}
		for _, k := range kinds {
			*k.gets = max(1, left*k.weight/weight)
		}
		return s
	}
}

type kind struct {
	weight, wish int
	gets         *int
}

// Needed is the least limit that meets all wishes but those that are Unbounded.
func Needed(w Wishes) uint64 {
	met := func(wish, gets int) bool { return wish == Unbounded || gets >= wish }
	return uint64(sort.Search(math.MaxInt32, func(n int) bool {
		s := Divide(uint64(n), w)
		return s.Own == Own && met(w.Connections, s.Connections) && met(w.Files, s.Files) && met(w.Peers, s.Peers) && met(w.Shared, s.Shared)
	}))
}

// String lists the parts, for people.
func (s Split) String() string {
	return fmt.Sprintf("%d for clients, %d for segments, %d for other ranks, %d for shared memory, %d for the rank itself",
		s.Connections, s.Files, s.Peers, s.Shared, s.Own)
}

// Limit raises this process's soft limit of open files to the hard one, which
// every process may, and returns what holds then.
func Limit() (uint64, error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, fmt.Errorf("descriptors: getrlimit: %w", err)
	}
	if l.Cur < l.Max {
		raised := unix.Rlimit{Cur: l.Max, Max: l.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err == nil {
			l = raised
		} // else the soft limit is what there is
	}
	return l.Cur, nil
}
