// Package heapfloor lets the garbage of small heaps gather. Go collects whenever the
// heap has doubled; a rank whose heap is small, because its blocks are elsewhere, would
// collect all the time, which costs a tenth of its processor time while it is busy.
//
// The package does not bound what a process takes: GOMEMLIMIT does that.
package heapfloor
