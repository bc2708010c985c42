// Package ring computes where a key lives: which ranks keep its directory entry.
//
// Glossary
//
//	score      what a rank has drawn for a partition: a hash of both
//	choices    the ranks with the highest scores of a partition, best first
//	bound      the most partitions that one rank may own; for replicas, be home of
//	circle     the fixed order of ranks in which an owner's surplus moves on
//	digest     64 bits over all that decides placement: equal digests, equal
//	           homes of every key
//
// The owner is the first choice unless that rank is full: then the partition
// moves to the next rank on the circle that has room. This second step, hashing
// with bounded loads, is github.com/buraksezer/consistent with one point a
// rank. Its own way, many points a rank, draws loads so uneven that many ranks
// are full at a tight bound, and one that joins or leaves then moves up to
// twice what it has to. Scores draw them so evenly, at 256 partitions a rank of
// 1,024, that few partitions meet the bound. Replicas are the best choices that
// are not homes yet, under a bound of their own.
//
// docs/protocol.md, "Placement", has the rule to the bit and what was measured.
// The package has ranks as numbers, and does not know who is alive, which is
// dht/members', or what an entry is, dht/directory's.
package ring
