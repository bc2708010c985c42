// Package estimate predicts how long loads take, and says what of a chain is worth loading.
//
// A level's Speed learns from the loads that end what its next one takes: a time for each load,
// a time for each byte, and what waits before it. Best compares that with computing the
// blocks anew, which papers on vLLM's offloading name as the question that engines leave to
// their users ("What is still unsolved").
//
// This package reads no clock and does no I/O: callers say what time it is. It does not
// know what levels there are, or where a block is.
package estimate
