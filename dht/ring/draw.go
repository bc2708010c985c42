package ring

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"cascadekv/dht/fabric"

	"github.com/buraksezer/consistent"
)

// mix is the finalizer of splitmix64: one to one on 64 bits.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// golden is 2^64 divided by the golden ratio: splitmix64's step.
const golden = 0x9e3779b97f4a7c15

// rankSeed and partitionSeed are values of the splitmix64 sequence, far apart.
// Different ranks have different seeds.
func rankSeed(rank fabric.Rank) uint64 { return mix(golden * (uint64(rank) + 1)) }

func partitionSeed(p int) uint64 { return mix(golden * (1<<32 + uint64(p))) }

// draw scores ranks, which are ascending.
type draw struct {
	ranks []fabric.Rank
	seeds []uint64
}

func newDraw(ranks []fabric.Rank) draw {
	seeds := make([]uint64, len(ranks))
	for i, rank := range ranks {
		seeds[i] = rankSeed(rank)
	}
	return draw{ranks, seeds}
}

// choose fills into, no longer than ranks, with the best for partition p. No
// two ranks score the same, for mix and xor are one to one.
func (d draw) choose(p int, into []fabric.Rank) {
	part := partitionSeed(p)
	var scores [MaxReplicas]uint64
	filled, worst := 0, uint64(0)
	for i, seed := range d.seeds {
		score := mix(part ^ seed)
		if filled == len(into) && score < worst {
			continue
		}
		if filled < len(into) {
			filled++
		}
		insert(scores[:filled], into[:filled], score, d.ranks[i])
		worst = scores[filled-1]
	}
}

// improve puts those ranks into a full list of the best that belong there.
func (d draw) improve(p int, into []fabric.Rank) {
	if len(d.ranks) == 0 {
		return
	}
	part := partitionSeed(p)
	var scores [MaxReplicas]uint64
	for i, rank := range into {
		scores[i] = mix(part ^ rankSeed(rank))
	}
	for i, seed := range d.seeds {
		if score := mix(part ^ seed); score > scores[len(into)-1] {
			insert(scores[:len(into)], into, score, d.ranks[i])
		}
	}
}

// insert writes a rank over the last place and moves it up to its own.
func insert(scores []uint64, ranks []fabric.Rank, score uint64, rank fabric.Rank) {
	i := len(scores) - 1
	for ; i > 0 && scores[i-1] < score; i-- {
		scores[i], ranks[i] = scores[i-1], ranks[i-1]
	}
	scores[i], ranks[i] = score, rank
}

// boundedOwners returns the owner of every partition: consistent takes each partition in turn to
// its first choice, or on along the circle to the first rank with room.
func boundedOwners(r *Ring) ([]fabric.Rank, error) {
	members := make([]consistent.Member, len(r.ranks))
	for i, rank := range circle(r.ranks) {
		members[i] = newMember(rank)
	}
	table := consistent.New(members, consistent.Config{
		Hasher:            placer{r},
		PartitionCount:    Partitions,
		ReplicationFactor: 1,
		Load:              Load,
	})
	owners := make([]fabric.Rank, Partitions)
	for p := range owners {
		owner, ok := table.GetPartitionOwner(p).(member)
		if !ok {
			return nil, fmt.Errorf("%w: partition %d of %d has no owner among %d ranks", ErrRanks, p, Partitions, len(r.ranks))
		}
		owners[p] = owner.rank
	}
	return owners, nil
}

// member is a rank in the form that consistent wants. The name has more bytes than a
// partition's number, so that placer can distinguish the two.
type member struct {
	rank fabric.Rank
	name string
}

func newMember(rank fabric.Rank) member {
	return member{rank, fmt.Sprintf("%010d", uint32(rank))}
}

// String is the rank's name on the circle.
func (m member) String() string { return m.name }

// placer is the hash that consistent sees: a rank lies at its seed, and a
// partition exactly where its first choice lies.
type placer struct{ ring *Ring }

// Sum64 hashes what consistent names: "0:" and a member, or a partition as a
// little-endian uint64.
func (h placer) Sum64(b []byte) uint64 {
	if len(b) == 8 {
		return rankSeed(h.ring.chosen(int(binary.LittleEndian.Uint64(b)))[0])
	}
	// Only names of members come here, and those parse.
	rank, _ := strconv.ParseUint(string(b[len("0:"):]), 10, 32)
	return rankSeed(fabric.Rank(rank))
}

// homeCounts counts the partitions that ranks are home of, as owner or replica,
// while replicas are placed.
type homeCounts struct {
	circle []fabric.Rank
	place  []int // on the circle, by rank
	held   []int // by place
	bound  int   // of held
}

func newHomeCounts(r *Ring) homeCounts {
	t := homeCounts{
		circle: circle(r.ranks), place: make([]int, r.ranks[len(r.ranks)-1]+1), held: make([]int, len(r.ranks)),
		bound: bound(r.width, len(r.ranks)),
	}
	for i, rank := range t.circle {
		t.place[rank] = i
	}
	return t
}

// next returns the next home of a partition: the best choice that is none yet
// or, if that is full, the next rank on the circle with room. If nobody has
// room it is the best choice all the same. choices has more ranks than homes.
func (t homeCounts) next(homes, choices []fabric.Rank) fabric.Rank {
	best := choices[slices.IndexFunc(choices, func(c fabric.Rank) bool { return !slices.Contains(homes, c) })]
	from := t.place[best]
	for i := range t.circle {
		at := (from + i) % len(t.circle)
		if t.held[at] < t.bound && !slices.Contains(homes, t.circle[at]) {
			t.held[at]++
			return t.circle[at]
		}
	}
	t.held[from]++
	return best
}
