// Package slack decides when an engine's transfers between device memory and
// NVMe are launched: in the time in which a layer's compute leaves multiprocessors
// free, reads before writes, and never both at once (Tutti §3.3).
//
// Glossary
//
//	slack         what a layer's compute leaves to transfers: a time, and a
//	              number of streaming multiprocessors (SMs)
//	slack window  the slack of one layer of one prefill, or of one decode step;
//	              here just window
//	count         of IOCBs, Tutti's I/O control blocks of many transfers each
//	profile       tables of one model on one GPU in one configuration
//	required      of reads: without them the next layer waits, so they are
//	              launched whether they fit into a window or not
//
// A Profile says how long a layer computes for so many new tokens behind so many
// restored ones, how many SMs it leaves, and how long a launch of n IOCBs takes
// and on how many SMs. It is measured once, kept as JSON (docs/gpu-store.md §2), and read
// by each process under the same deployment.
//
// A Scheduler looks that up before each layer and returns what to launch. It plans:
// its caller may enqueue a whole forward pass before the first transfer has ended.
// What fits into a window is taken to end in it; what is required, before the
// layer that waits for it. Where an estimate was wrong, Launch.Fence keeps reads
// and writes apart all the same, at the price of some time.
//
// Rules, in their order:
//
//  1. Reads of the layer that begins, if there are any left, are launched at once.
//  2. While reads are left, a window is for reads: as many as fit into it, in the
//     order of layers, those of the next layer by a launch of their own, so that it
//     waits for no others. If these alone do not fit they are launched all the
//     same, and no others.
//  3. A window of a prefill without reads left is for writes, as many as fit.
//     If none does they stay queued.
//  4. So is the window of a decode step, and time without any compute.
//  5. Queued writes outlive their request, and go before those of later ones.
//
// The package has no clock, does no I/O, and holds no locks: it does not launch,
// wait, or measure. Callers report what really happened with Observe, and
// Stats has by how much the estimates were off.
package slack
