// Package losslog remembers why names were lost: for each of the last ones, by
// fingerprint, what ended it, or kept it from being stored or read, and when. It takes a
// fixed table, and a constant time for each loss.
//
// The package does not know whether a name is there now: its owner compares. It keeps
// nothing of requests that found their block, or that asked for one nobody ever stored.
package losslog
