// Package dht is the place for what makes many ranks one store: which rank a
// key belongs to, who is alive, where a block lies, and how its bytes travel
// (design.md §6).
//
// Nothing is here yet: a rank knows only itself, and a miss is not asked of
// any other. design.md §3 reserves
//
//	ring/       maps partitions to ranks; gives each key its home
//	members/    which ranks are alive
//	directory/  on a key's home: name → id, size, checksum, owners, segment
//	fabric/     messages and payloads between ranks: mpi/, tcp/, and sim/ for
//	            tests
//
// The seam is tiers.Tier: tiers/remote will adapt this package, so that to the
// store another rank's memory is one more tier. This package will not decide
// what stays or moves, and will know neither lustre nor gpu.
package dht
