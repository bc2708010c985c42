// Package heapfloor lets the garbage of small heaps gather. Go collects whenever the
// heap has doubled; a rank whose heap is small, because its blocks are elsewhere, would
// collect all the time. It does not bound memory.
package heapfloor
