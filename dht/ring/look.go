package ring

import (
	"fmt"
	"slices"

	"cascadekv/dht/fabric"
)

// circle returns ranks in the order in which surplus moves on. In this order
// consistent sorts what is sorted already, once for each rank.
func circle(ranks []fabric.Rank) []fabric.Rank {
	order := slices.Clone(ranks)
	slices.SortFunc(order, func(a, b fabric.Rank) int {
		if rankSeed(a) < rankSeed(b) {
			return -1
		}
		return 1
	})
	return order
}

// Share is what a rank owns.
type Share struct {
	Rank       fabric.Rank `json:"rank"`
	Partitions int         `json:"partitions"` // as owner
	Homes      int         `json:"homes"`      // partitions as owner or replica
	Fraction   float64     `json:"fraction"`   // of all partitions, as owner
}

// Shares returns what each rank owns, by rank.
func (r *Ring) Shares() []Share {
	shares := make([]Share, len(r.ranks))
	place := make([]int, r.ranks[len(r.ranks)-1]+1)
	for i, rank := range r.ranks {
		shares[i].Rank, place[rank] = rank, i
	}
	for i, rank := range r.homes {
		at := place[rank]
		shares[at].Homes++
		if i%r.width == 0 {
			shares[at].Partitions++
		}
	}
	for i := range shares {
		shares[i].Fraction = float64(shares[i].Partitions) / Partitions
	}
	return shares
}

// Explanation is where a key lives and why.
type Explanation struct {
	Namespace  string  `json:"namespace"`
	Key        string  `json:"key"`
	Version    uint32  `json:"version"` // of the placement rule
	Digest     string  `json:"digest"`  // of the ring, 16 hex digits
	Hash       string  `json:"hash"`    // of namespace and key, 16 hex digits
	Partition  int     `json:"partition"`
	Partitions int     `json:"partitions"`
	Ranks      int     `json:"ranks"`
	Bound      int     `json:"bound"` // the most partitions that a rank owns
	Homes      []Place `json:"homes"` // the owner first
}

// Place is one home of a key and why it is one.
type Place struct {
	Rank fabric.Rank `json:"rank"`
	Role string      `json:"role"` // "owner" or "replica"
	Why  string      `json:"why"`  // for people
}

// Explain returns where a key lives and why, for people.
func (r *Ring) Explain(namespace, key string) Explanation {
	hash := Hash(namespace, key)
	p := int(hash % Partitions)
	e := Explanation{
		Namespace: namespace, Key: key,
		Version: Version, Digest: fmt.Sprintf("%016x", r.digest), Hash: fmt.Sprintf("%016x", hash),
		Partition: p, Partitions: Partitions, Ranks: len(r.ranks), Bound: r.bound,
	}
	best := r.chosen(p)
	for i, rank := range r.Homes(p) {
		place := Place{Rank: rank, Role: "replica"}
		if i == 0 {
			place.Role = "owner"
		}
		at := slices.Index(best, rank)
		switch {
		case i == 0 && at != 0:
			place.Why = fmt.Sprintf("%v has the best score but owns its %d partitions; the next rank on the circle with room", best[0], r.bound)
		case at >= 0:
			place.Why = fmt.Sprintf("score %d of %d ranks", at+1, len(r.ranks))
		default:
			place.Why = "a rank with a better score is home of enough partitions; the next rank on the circle with room"
		}
		e.Homes = append(e.Homes, place)
	}
	return e
}
