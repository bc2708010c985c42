// Package host is anonymous host memory as a tier. It takes the place of GPU
// HBM (CASCADE §III-B, tier 1) where there is no GPU, so that the flow between
// a small fast tier and shm runs everywhere; it is off by default, since it is
// no faster than shm.
//
// What it holds dies with the process. The mechanism is tiers/memory, and its
// words are those of tiers/memory. The package does not reach a GPU, and does not
// bind its memory to the node of one.
package host
