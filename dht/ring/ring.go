package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"cascadekv/dht/fabric"

	"github.com/cespare/xxhash/v2"
)

// Version is the version of the placement rule. It changes whenever the homes
// of any key would. Ranks of different versions must not share a directory, so
// it is part of every handshake.
const Version uint32 = 1

// Partitions is how many partitions the keys are divided into, whatever the
// number of ranks.
const Partitions = 1 << 18

// Load bounds what a rank may own: Load times the mean, rounded up.
const Load = 1.10

// MaxRanks bounds how many ranks a ring has, and their numbers.
const MaxRanks = 1 << 16

// MaxReplicas bounds how many homes a partition has.
const MaxReplicas = 8

// Errors of New and of a ring's changes, wrapped with the rank or number that
// was refused. Test with errors.Is.
var (
	ErrRanks    = errors.New("ring: no placement for this set of ranks")
	ErrReplicas = errors.New("ring: no placement with this many replicas")
)

// Ring is the placement of all keys on one set of ranks. It never changes:
// With, Without and Next give another one. All methods are safe for concurrent
// use. A ring takes 1 MiB for each replica, and 2 once a rank is full.
type Ring struct {
	epoch    uint64
	digest   uint64
	replicas int
	width    int // homes of each partition: min(replicas, ranks)
	bound    int
	ranks    []fabric.Rank // ascending
	choices  []fabric.Rank // width a partition: by score, best first
	homes    []fabric.Rank // width a partition: the owner, then replicas; choices itself if all fit
}

// New places all keys on ranks, with up to replicas homes for each. The order
// of ranks has no influence. Errors: ErrRanks when there is none, one is named
// twice or one is MaxRanks or more; ErrReplicas outside of 1 to MaxReplicas.
// It compares Partitions times len(ranks) hashes; a ring that differs little
// comes cheaper from Next.
func New(ranks []fabric.Rank, replicas int) (*Ring, error) {
	r, err := prepare(ranks, replicas)
	if err != nil {
		return nil, err
	}
	r.epoch = 1
	d := newDraw(r.ranks)
	for p := range Partitions {
		d.choose(p, r.chosen(p))
	}
	return r, r.settle()
}

// With returns the ring that has rank too. Error: ErrRanks when it is there
// already.
func (r *Ring) With(rank fabric.Rank) (*Ring, error) {
	return r.Next(append(slices.Clone(r.ranks), rank))
}

// Without returns the ring that lacks rank. Error: ErrRanks when it is not
// there, or the last one.
func (r *Ring) Without(rank fabric.Rank) (*Ring, error) {
	at, found := slices.BinarySearch(r.ranks, rank)
	if !found {
		return nil, fmt.Errorf("%w: %v is not part of it and can not leave", ErrRanks, rank)
	}
	return r.Next(slices.Delete(slices.Clone(r.ranks), at, at+1))
}

// Next returns the ring of another set of ranks, of the next epoch: the same
// placement as New gives, for a cost that grows with the difference. Errors as
// New's.
func (r *Ring) Next(ranks []fabric.Rank) (*Ring, error) {
	next, err := prepare(ranks, r.replicas)
	if err != nil {
		return nil, err
	}
	next.epoch = r.epoch + 1
	joined, left := missing(next.ranks, r.ranks), missing(r.ranks, next.ranks)
	all, newcomers := newDraw(next.ranks), newDraw(joined)
	for p := range Partitions {
		old := r.chosen(p)
		if len(old) < next.width || intersects(old, left) {
			all.choose(p, next.chosen(p))
			continue
		}
		into := next.chosen(p)
		copy(into, old)
		newcomers.improve(p, into)
	}
	return next, next.settle()
}

// prepare makes a ring without placement.
func prepare(ranks []fabric.Rank, replicas int) (*Ring, error) {
	if replicas < 1 || replicas > MaxReplicas {
		return nil, fmt.Errorf("%w: %d; give 1 to %d", ErrReplicas, replicas, MaxReplicas)
	}
	if len(ranks) == 0 {
		return nil, fmt.Errorf("%w: it is empty; give at least this rank itself", ErrRanks)
	}
	sorted := slices.Clone(ranks)
	slices.Sort(sorted)
	for i, rank := range sorted {
		if rank >= MaxRanks {
			return nil, fmt.Errorf("%w: %v is not below %d", ErrRanks, rank, MaxRanks)
		}
		if i > 0 && rank == sorted[i-1] {
			return nil, fmt.Errorf("%w: %v is named twice", ErrRanks, rank)
		}
	}
	width := min(replicas, len(sorted))
	return &Ring{
		digest:   digest(sorted, replicas),
		replicas: replicas,
		width:    width,
		ranks:    sorted,
		bound:    bound(1, len(sorted)),
		choices:  make([]fabric.Rank, Partitions*width),
	}, nil
}

// bound is how many partitions one of n ranks may be home of, where each has so many
// homes: Load times the mean, rounded up.
func bound(homes, n int) int {
	return int(math.Ceil(float64(Partitions*homes) / float64(n) * Load))
}

// settle derives homes from choices. With up to some hundred ranks chance alone keeps all
// within their bounds, and whoever is never full has what it was chosen for: then nobody
// has to be placed in turn, which takes ten times as long as the choice.
func (r *Ring) settle() error {
	if r.fits() {
		r.homes = r.choices
		return nil
	}
	return r.place()
}

// fits reports whether no rank is chosen more often than it has room, as owner and in all.
func (r *Ring) fits() bool {
	most := r.ranks[len(r.ranks)-1] + 1
	first, all := make([]int, most), make([]int, most)
	for i, rank := range r.choices {
		all[rank]++
		if i%r.width == 0 {
			first[rank]++
		}
	}
	return slices.Max(first) <= r.bound && slices.Max(all) <= bound(r.width, len(r.ranks))
}

// place gives each partition its homes in turn: all owners first, then replica by replica.
func (r *Ring) place() error {
	owners, err := boundedOwners(r)
	if err != nil {
		return err
	}
	r.homes = make([]fabric.Rank, len(r.choices))
	t := newHomeCounts(r)
	for p, owner := range owners {
		r.Homes(p)[0] = owner
		t.held[t.place[owner]]++
	}
	for i := 1; i < r.width; i++ {
		for p := range owners {
			homes := r.Homes(p)
			homes[i] = t.next(homes[:i], r.chosen(p))
		}
	}
	return nil
}

func (r *Ring) chosen(partition int) []fabric.Rank {
	return r.choices[partition*r.width : (partition+1)*r.width : (partition+1)*r.width]
}

// Hash is the hash of a key: xxHash64, seed 0, of the namespace's length in
// bytes as a little-endian uint64, the namespace, and the key. It allocates
// nothing.
func Hash(namespace, key string) uint64 {
	var d xxhash.Digest
	d.Reset()
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(namespace)))
	d.Write(length[:])
	d.WriteString(namespace)
	d.WriteString(key)
	return d.Sum64()
}

// Partition returns the partition of a key, from 0 to Partitions-1. It is the
// same in every ring.
func Partition(namespace, key string) int {
	return int(Hash(namespace, key) % Partitions)
}

// Partition is the function Partition.
func (r *Ring) Partition(namespace, key string) int { return Partition(namespace, key) }

// Homes returns the ranks that keep a partition's entries, the owner first:
// as many as the ring has replicas, or all of its ranks. The slice belongs to
// the ring: do not change it. A partition outside of 0 to Partitions-1 is a
// mistake in the caller and panics as an index does.
func (r *Ring) Homes(partition int) []fabric.Rank {
	return r.homes[partition*r.width : (partition+1)*r.width : (partition+1)*r.width]
}

// IsHome reports whether rank is one of a partition's homes.
func (r *Ring) IsHome(rank fabric.Rank, partition int) bool {
	return slices.Contains(r.Homes(partition), rank)
}

// Ranks returns all ranks, ascending. The slice is the caller's.
func (r *Ring) Ranks() []fabric.Rank { return slices.Clone(r.ranks) }

// Has reports whether rank is part of the ring.
func (r *Ring) Has(rank fabric.Rank) bool {
	_, found := slices.BinarySearch(r.ranks, rank)
	return found
}

// Len returns how many ranks there are.
func (r *Ring) Len() int { return len(r.ranks) }

// Digest stands for everything that decides placement: the rule's version and
// constants, the replicas and the ranks. Two ranks whose digests are equal
// place every key equally; two that differ see different members for now. It
// says nothing about who is ahead: membership has no such order.
func (r *Ring) Digest() uint64 { return r.digest }

// Epoch counts the rings of this process: New's is 1, and each next one has one
// more. It orders snapshots within a process and means nothing to another.
func (r *Ring) Epoch() uint64 { return r.epoch }

// digest is xxHash64 of the constants and of sorted.
func digest(sorted []fabric.Rank, replicas int) uint64 {
	text := binary.LittleEndian.AppendUint32(nil, Version)
	text = binary.LittleEndian.AppendUint32(text, Partitions)
	text = binary.LittleEndian.AppendUint32(text, uint32(replicas))
	text = binary.LittleEndian.AppendUint32(text, uint32(len(sorted)))
	for _, rank := range sorted {
		text = binary.LittleEndian.AppendUint32(text, uint32(rank))
	}
	return xxhash.Sum64(text)
}

// missing returns what is in a but not in b, both ascending.
func missing(a, b []fabric.Rank) []fabric.Rank {
	var only []fabric.Rank
	for _, rank := range a {
		if _, found := slices.BinarySearch(b, rank); !found {
			only = append(only, rank)
		}
	}
	return only
}

// intersects reports whether a rank is in both; b is ascending.
func intersects(a, b []fabric.Rank) bool {
	for _, rank := range a {
		if _, found := slices.BinarySearch(b, rank); found {
			return true
		}
	}
	return false
}
